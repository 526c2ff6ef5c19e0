"""A verifier that misbehaves costs one sample, never its neighbours, the pool or the run."""

from pathlib import Path

import psutil
import pytest

from grpo.config.schema import Env
from grpo.rewards.request import RewardRequest, Score
from grpo.rewards.scoring import Rewards

HERE = Path(__file__).parent
# What the misbehaviour costs its own sample: (kind of failure, part of the reason); None: it scores.
COST = {
    "loop": ("timeout", "timeout after 2 s"),
    "loop_in_c": ("timeout", "timeout after 2 s"),
    "stop_itself": ("timeout", "timeout after 2 s"),
    "ignore_signals_and_sleep": ("timeout", "timeout after 2 s"),
    "hang_with_child": ("timeout", "timeout after 2 s"),
    "segfault": ("crash", "SIGSEGV"),
    "exit_hard": ("crash", "status 3"),
    "exit_hard_with_child": ("crash", "status 4"),
    "close_files": ("crash", ""),
    "write_to_every_file": ("crash", "wrote to the pool's own channel"),
    "kill_the_pool": ("crash", "killed the pool"),
    "eat_memory": ("memory", "out of memory"),
    "raise_error": ("error", "raised ValueError: bad sample"),
    "raise_unprintable": ("error", "raised Unprintable"),
    "raise_huge_text": ("error", "raised ValueError"),
    "call_sys_exit": ("error", "raised SystemExit: 0"),
    "interrupt": ("error", "raised KeyboardInterrupt"),
    "recurse": ("error", "raised RecursionError"),
    "return_nan": ("invalid", "returned nan"),
    "return_inf": ("invalid", "returned inf"),
    "return_none": ("invalid", "returned NoneType"),
    "return_string": ("invalid", "returned str"),
    "return_too_large_for_float32": ("invalid", "float32"),
    "return_complex": ("invalid", "returned complex"),
    "return_huge_integer": ("error", "raised OverflowError"),
    "fork_child": None,
    "daemonise": None,
    "fork_and_return_twice": None,
    "print_garbage": None,
    "close_output_and_return": None,
    "change_directory": None,
    "poison_the_process": None,
    "hoard_memory": None,
}
# What goes off at a time of its own, before or after its own sample has ended.
TIME_BOMBS = ("arm_a_timer", "leave_a_thread_that_exits")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def rewards(**options):
    settings = {"verifier": "misbehaving:reward", "num_workers": 2, "timeout_s": 2.0, "memory_limit_mb": 512}
    return Rewards({"user": Env(**{**settings, **options})})


def requests(completions, notes):
    record = {"notes": str(notes), "directory": str(Path.cwd())}
    return [("user", RewardRequest(f"sample-{i}", "", text, None, record)) for i, text in enumerate(completions)]


def gone(pid):
    try:
        psutil.Process(pid).wait(timeout=30)
    except psutil.NoSuchProcess:
        return True
    return not psutil.pid_exists(pid)


@pytest.mark.parametrize("misbehaviour", COST)
def test_costs_one_sample(misbehaviour, tmp_path):
    completions = [f"good {i}" for i in range(24)]
    completions[9] = misbehaviour
    expected = [Score(float(i), None) for i in range(24)]
    hangs = COST[misbehaviour] is not None and COST[misbehaviour][0] == "timeout"
    with rewards(timeout_s=2.0 if hangs else 60.0) as pools:
        scores = pools.score(requests(completions, tmp_path))
        bad = scores.pop(9)
        del expected[9]
        assert scores == expected
        if COST[misbehaviour] is None:
            assert bad == Score(1.0, None)
            assert sum(pools.counts.values()) == 0
        else:
            kind, reason = COST[misbehaviour]
            assert bad.value is None
            assert reason in bad.failure
            assert len(bad.failure) < 1000
            assert pools.counts == {name: int(name == kind) for name in pools.counts}
        if misbehaviour != "daemonise":  # that is out of sight until the pool closes
            for left_behind in tmp_path.iterdir():
                assert gone(int(left_behind.name))
        # The pool is whole again.
        again = pools.score(requests([f"good {i}" for i in range(24)], tmp_path))
        assert again == [Score(float(i), None) for i in range(24)]
    for left_behind in tmp_path.iterdir():
        assert gone(int(left_behind.name))


@pytest.mark.parametrize("bomb", TIME_BOMBS)
def test_time_bomb_costs_one_sample_at_most(bomb, tmp_path):
    completions = [f"good {i}" for i in range(24)]
    completions[9] = bomb
    with rewards(timeout_s=60.0, num_workers=1) as pools:
        scores = pools.score(requests(completions, tmp_path))
        assert scores.pop(9).value in {1.0, None}
        assert scores == [Score(float(i), None) for i in range(24) if i != 9]
        assert sum(pools.counts.values()) <= 1


@pytest.mark.parametrize("num_workers", [1, 3])
def test_hundreds_of_samples_with_some_of_every_kind(num_workers, tmp_path):
    # One that hangs stands for all, and one that kills the pool makes the rest slow.
    names = ["loop_in_c"]
    names += [name for name in COST if (COST[name] or [""])[0] != "timeout" and name != "kill_the_pool"]
    completions = [f"good {i}" for i in range(400)]
    for i, name in enumerate(names):
        completions[7 + 11 * i] = name
    expected = {i: float(i) for i, text in enumerate(completions) if text.startswith("good")}
    with rewards(num_workers=num_workers) as pools:
        scores = pools.score(requests(completions, tmp_path))
        assert {i: scores[i].value for i in expected} == expected
        failures = [name for name in names if COST[name] is not None]
        assert sum(pools.counts.values()) == len(failures)
        for i, text in enumerate(completions):
            cost = COST.get(text)
            if cost is not None:
                assert scores[i].value is None
                assert cost[1] in scores[i].failure


def test_samples_that_all_hang_cost_their_limit_only(tmp_path):
    with rewards(timeout_s=0.2, num_workers=2) as pools:
        scores = pools.score(requests(["loop"] * 6 + ["good 1"], tmp_path))
    assert [score.value for score in scores] == [None] * 6 + [1.0]
    assert pools.counts["timeout"] == 6


def test_every_sample_crashes(tmp_path):
    with rewards(timeout_s=60.0) as pools:
        scores = pools.score(requests(["exit_hard"] * 40, tmp_path))
    assert {score.failure for score in scores} == {"its process exited with status 3"}
    assert pools.counts["crash"] == 40


def test_failures_are_warned_of_when_their_number_has_doubled(tmp_path, caplog):
    with rewards(timeout_s=60.0) as pools:
        for _ in range(9):
            pools.score(requests(["raise_error", "good 1"], tmp_path))
    warned = [record.getMessage() for record in caplog.records if record.name == "grpo.rewards.scoring"]
    assert [message.split(" samples")[0] for message in warned] == [f"env user: {n}" for n in (1, 2, 4, 8)]
    assert "sample-0: raised ValueError: bad sample" in warned[0]
