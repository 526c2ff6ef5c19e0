from tests.support.synthetic_run import write_synthetic_run


def test_a_run_says_where_it_is(run, tmp_path):
    write_synthetic_run(tmp_path / "mine", steps=30)
    code, out, _ = run("status", tmp_path / "mine")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == [str(tmp_path / "mine")]
    assert ["run", "completed"] in lines
    assert ["step", "30", "of", "30"] in lines
    assert next(line for line in lines if line[0] == "checkpoint")[1:3] == ["step", "25:"]


def test_what_is_neither_a_folder_nor_a_job(run, tmp_path):
    code, _, err = run("status", tmp_path / "nothing")
    assert code == 2
    assert "neither a folder nor the number of a job" in err
