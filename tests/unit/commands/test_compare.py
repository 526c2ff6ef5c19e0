import json

from grpo.matrix.load import load_matrix
from tests.support.case_runs import case_run, small_matrix


def runs_of(tmp_path, specs):
    matrix = load_matrix(small_matrix(tmp_path / "matrices"))
    return [
        case_run(matrix, tmp_path / f"run{at}", {"policy_training": seconds}, started=10.0 * at)
        for at, seconds in enumerate(specs)
    ]


def test_two_runs(run, tmp_path):
    first, second = runs_of(tmp_path, [28.0, 35.0])
    code, out, _ = run("compare", first, second)
    text = " ".join(out.split())
    assert code == 0
    assert "1.152 x the compute" in text  # 35 + 18 over 28 + 18
    assert "20 steps, of 20 and 20" in text
    plain = json.loads(run("compare", first, second, "--format", "json")[1])
    assert (plain["pairs"], plain["worst_difference"]) == (20, 0.0)
    assert run("compare", first, second, "--format", "markdown")[1].startswith("### ")


def test_old_and_new_in_turn(run, tmp_path):
    slower = runs_of(tmp_path, [28.0 if at % 4 in (0, 3) else 40.0 for at in range(12)])
    code, out, _ = run("compare", "--abba", *slower)
    assert code == 1
    assert "slower: the median ratio of the total is 1.082 over 6 pairs, p = 0.0156" in " ".join(out.split())
    # The other way round.
    code, out, _ = run("compare", "--abba", *[slower[at ^ 1] for at in range(12)])
    assert (code, "started before" in run("compare", "--abba", *reversed(slower))[2]) == (2, True)


def test_what_cannot_be_compared(run, tmp_path):
    first, second = runs_of(tmp_path, [28.0, 28.0])
    assert "give two" in run("compare", first)[2]
    assert "2 runs: ABBA takes 6" in run("compare", "--abba", first, second)[2]
    assert "none is left after 25 of warm-up" in run("compare", first, second, "--warmup", 25)[2]
