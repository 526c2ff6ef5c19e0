def test_a_dry_run_writes_the_script_and_says_the_hours(run, tmp_path):
    code, out, _ = run("matrix", "submit", "70b-megatron", "--dry-run", "--folder", tmp_path / "r")
    assert code == 0
    assert "hours" in out
    assert (tmp_path / "r" / "70b-megatron" / "attempt-1" / "job.sh").is_file()


def test_a_case_of_several_partitions_needs_one(run):
    code, _, err = run("matrix", "submit", "8b-dtensor", "--dry-run")
    assert code == 2
    assert "choose one with --partition" in err


def test_without_slurm_it_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run("matrix", "submit", "tiny-hf", "--folder", tmp_path / "r")
    assert code == 2
    assert "there is no sbatch on this machine" in err
