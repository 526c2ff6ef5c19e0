"""A run that is killed at any instant goes on as though it had not been; see `tests.support.kill_harness`."""

import pytest

from tests.support.kill_harness import Plan, run_plans

IN_BACKGROUND = ("checkpointing.async_save=true",)


def check(results, *, at_least):
    failed = [f"killed at {result.kills}, in {result.died}:\n{result.problem}" for result in results if result.problem]
    assert not failed, f"{len(failed)} of {len(results)}\n" + "\n".join(failed[:5])
    assert len(results) >= at_least
    return " ".join(place for result in results for place in result.died)


@pytest.mark.timeout(300)
def test_of_each_kind_of_change_to_the_disk_and_at_random_times(tmp_path):
    results = run_plans(
        tmp_path, [Plan(changes="kinds", times=2, twice=2), Plan(IN_BACKGROUND, times=2, twice=2)], timeout_s=280
    )
    places = check(results, at_least=40)
    for place in ("write checkpoints/step_", "rename checkpoints/step_", "unlink checkpoints/step_", "metrics.jsonl",
                  "manifest.json", ".lock"):  # fmt: skip
        assert place in places


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("overrides", [(), IN_BACKGROUND], ids=["at once", "in the background"])
def test_every_change_and_hundreds_of_random_times(tmp_path, overrides):
    plan = Plan(overrides, changes="none" if overrides else "each", times=150, twice=100, seed=1)
    check(run_plans(tmp_path, [plan], timeout_s=1790), at_least=250)
