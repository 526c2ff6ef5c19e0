"""The mover with workers that only say what they were asked."""

import pytest

from grpo.placement.errors import PlacementError
from grpo.placement.placement import Placement, sleep_until_needed
from grpo.placement.resources import ENGINE, POLICY, Residence, Resource
from grpo.placement.table import Sharing, colocated, separate
from grpo.telemetry.timers import PhaseTimer

GPU, CPU, ABSENT = Residence.GPU, Residence.CPU, Residence.ABSENT
EVERYTHING = Sharing(*[True] * 4, 2)


class RecordingPolicy:
    def __init__(self, log):
        self.log, self.now = log, dict.fromkeys(POLICY, GPU)

    def residences(self):
        return self.now

    def move(self, resource, residence):
        self.log.append(f"{resource} to {residence}")
        self.now[resource] = residence
        return 1 << 29

    def release(self):
        self.log.append("release")
        return {"allocated_gib": 1.5, "reserved_gib": 2.0, "driver_gib": 3.0}


class RecordingEngine:
    def __init__(self, log):
        self.log, self.now = log, dict.fromkeys(ENGINE, GPU)

    def residences(self):
        return self.now

    def sleep(self, level):
        self.log.append(f"sleep {level}")
        self.now.update({Resource.ENGINE_WEIGHTS: CPU if level == 1 else ABSENT, Resource.ENGINE_KV_CACHE: ABSENT})

    def wake(self, tags):
        self.log.append(f"wake {' '.join(tags)}")
        resources = {"weights": Resource.ENGINE_WEIGHTS, "kv_cache": Resource.ENGINE_KV_CACHE}
        self.now.update({resources[tag]: GPU for tag in tags})


class Started:
    def __init__(self, plan):
        self.log = []
        self.policy, self.engine = RecordingPolicy(self.log), RecordingEngine(self.log)
        self.placement = Placement(plan, self.policy, self.engine)

    def calls_into(self, phase):
        self.log.clear()
        charges = self.placement.enter(phase)
        return self.log[:], [(each.phase, each.part) for each in charges]


def test_a_step_makes_room_before_it_takes_it_and_wakes_the_cache_last():
    started = Started(colocated(EVERYTHING, reference=True))
    calls = {phase: started.calls_into(phase) for phase in ("refit", "generation", "logprobs", "policy_training")}
    assert calls["logprobs"] == (
        ["sleep 2", "policy_parameters to gpu", "reference_parameters to gpu"],
        [("generation", "sleep"), ("logprobs", "onload")],
    )
    assert calls["policy_training"] == (
        ["reference_parameters to cpu", "optimizer_state to gpu", "gradients to gpu"],
        [("policy_training", "offload"), ("policy_training", "onload")],
    )
    assert started.calls_into("refit") == (
        ["gradients to absent", "optimizer_state to cpu", "release", "wake weights"],
        [("refit", "offload"), ("refit", "wake")],
    )
    assert started.calls_into("generation") == (
        ["policy_parameters to cpu", "release", "wake kv_cache"],
        [("refit", "offload"), ("refit", "wake")],
    )
    assert started.calls_into("generation") == ([], [])


def test_an_engine_at_level_one_wakes_whole_where_no_refit_is_due():
    started = Started(colocated(Sharing(sleep_level=1), reference=False))
    started.policy.now[Resource.REFERENCE_PARAMETERS] = ABSENT
    started.placement._now[Resource.REFERENCE_PARAMETERS] = ABSENT
    assert started.calls_into("checkpoint")[0] == ["sleep 1"]
    assert started.calls_into("generation")[0] == ["wake weights kv_cache"]


def test_seconds_go_to_the_phases_that_the_moves_are_for():
    started = Started(colocated(EVERYTHING, reference=True))
    timer = PhaseTimer(entering=started.placement.enter)
    with timer.step() as times:
        for phase in ("refit", "generation", "rewards", "logprobs", "policy_training"):
            with timer.phase(phase):
                pass
    parts = {name for name in times if name.count("/") == 2}
    assert parts == {
        f"timing/{each}"
        for each in (
            "refit/offload", "refit/wake", "generation/sleep", "logprobs/onload", "policy_training/offload",
            "policy_training/onload",
        )
    } - {"timing/refit/wake"}  # the engine was awake  # fmt: skip
    assert times["timing/generation"] >= times["timing/generation/sleep"] > 0


def test_what_was_copied_and_what_stayed_is_told_once():
    started = Started(colocated(EVERYTHING, reference=True))
    assert started.placement.step_metrics() == {}
    for phase in ("refit", "generation", "logprobs"):
        started.placement.enter(phase)
    assert started.placement.step_metrics() == {
        "memory/offloaded_gib": 2.0, "memory/onloaded_gib": 1.0, "memory/after_offload_allocated_gib": 1.5,
        "memory/after_offload_reserved_gib": 2.0, "memory/after_offload_driver_gib": 3.0,
    }  # fmt: skip
    assert started.placement.step_metrics() == {}


def test_a_move_behind_its_back_is_found_on_entering_the_next_phase():
    started = Started(separate(reference=True))
    started.placement.enter("policy_training")
    started.placement.enter("checkpoint")
    started.policy.move(Resource.OPTIMIZER_STATE, CPU)
    with pytest.raises(
        PlacementError,
        match=r"entering phase policy_training of the separate plan optimizer_state is on cpu, but .*on gpu",
    ):
        started.placement.enter("policy_training")


def test_a_worker_that_does_not_do_what_it_is_asked_is_found():
    started = Started(colocated(EVERYTHING, reference=True))
    started.policy.move = lambda resource, residence: 0
    with pytest.raises(
        PlacementError, match=r"after the moves into phase refit .*gradients is on gpu, but .*on absent"
    ):
        started.placement.enter("refit")


@pytest.mark.parametrize(("level", "calls"), [(0, []), (1, ["sleep 1"]), (2, ["sleep 2"])])
def test_an_engine_that_shares_sleeps_while_the_policy_is_loaded(level, calls):
    log = []
    sleep_until_needed(colocated(Sharing(sleep_level=level), reference=False), RecordingEngine(log))
    assert log == calls
