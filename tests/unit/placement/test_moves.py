"""The table, walked: every plan, every state that can be reached, every phase from it."""

import itertools
from collections import deque

import pytest

from grpo.placement.errors import PlacementError
from grpo.placement.moves import moves_into
from grpo.placement.resources import ENGINE, POLICY, Residence, Resource
from grpo.placement.table import Sharing, colocated, separate
from grpo.telemetry.timers import PHASES

GPU, CPU, ABSENT = Residence.GPU, Residence.CPU, Residence.ABSENT
SHARINGS = [Sharing(*each) for each in itertools.product(*[(False, True)] * 4, (0, 1, 2))]
PLANS = [colocated(sharing, reference=reference) for sharing in SHARINGS for reference in (False, True)]
SEPARATE = [separate(reference=reference) for reference in (False, True)]
EVERYTHING = Sharing(*[True] * 4, 2)


def starts(plan):
    """All on the GPU; and with an engine that sleeps since it was started."""
    reference = GPU if GPU in plan.residences(Resource.REFERENCE_PARAMETERS) else ABSENT
    awake = dict.fromkeys((*POLICY, *ENGINE), GPU) | {Resource.REFERENCE_PARAMETERS: reference}
    weights = {0: GPU, 1: CPU, 2: ABSENT}[plan.sleep_level]
    asleep = {**awake, Resource.ENGINE_WEIGHTS: weights, Resource.ENGINE_KV_CACHE: ABSENT if plan.sleep_level else GPU}
    return [awake, asleep]


def entered(plan, state, phase):
    """The moves and the state after them; None where the plan refuses the phase from there."""
    if needs_a_refit(plan, state, phase):
        with pytest.raises(PlacementError, match=rf"phase {phase} .*engine_weights on gpu, but it is on absent"):
            moves_into(plan, state, phase)
        return None
    moves = moves_into(plan, state, phase)
    return moves, {**state, **{each.resource: each.target for each in moves}}


def needs_a_refit(plan, state, phase):
    wanted = plan.rows[phase].get(Resource.ENGINE_WEIGHTS)
    return phase != "refit" and state[Resource.ENGINE_WEIGHTS] == ABSENT and wanted == GPU


def check(plan, state, phase, moves, after):
    row = plan.rows[phase]
    assert all(after[each] == residence for each, residence in row.items())
    assert len({each.resource for each in moves}) == len(moves)
    for each in moves:
        assert state[each.resource] == each.source != each.target == row[each.resource]
    order = [each.leaves for each in moves]
    assert order == sorted(order, reverse=True), "room is made before it is taken"
    arriving = [each.resource for each in moves if not each.leaves]
    if Resource.ENGINE_KV_CACHE in arriving:
        assert arriving[-1] == Resource.ENGINE_KV_CACHE, "the KV cache wakes last"
        assert after[Resource.ENGINE_WEIGHTS] == GPU
    for each in moves:
        if each.resource in ENGINE:
            expected = ("generation", "sleep") if each.leaves else ("refit", "wake")
        elif each.leaves:
            expected = ("refit" if phase in ("generation", "validation") else phase, "offload")
        else:
            expected = (phase, "onload")
        assert (each.counts_in, each.part) == expected


def key(state):
    return tuple(sorted(state.items()))


def test_from_every_state_that_can_be_reached_every_phase_gets_what_it_needs_or_is_refused():
    transitions = 0
    for plan in (*PLANS, *SEPARATE):
        waiting, seen = deque(starts(plan)), set()
        while waiting:
            state = waiting.popleft()
            if key(state) in seen:
                continue
            seen.add(key(state))
            for phase in PHASES:
                result = entered(plan, state, phase)
                if result is not None:
                    check(plan, state, phase, *result)
                    waiting.append(result[1])
                    transitions += 1
                    assert moves_into(plan, result[1], phase) == [], "a phase entered again moves nothing"
    assert transitions > 3000


@pytest.mark.parametrize("plan", [
    colocated(EVERYTHING, reference=True), colocated(Sharing(sleep_level=1, offload_optimizer=True), reference=True),
    separate(reference=True),
], ids=["everything", "some", "separate"])  # fmt: skip
def test_every_path_of_four_phases(plan):
    paths = 0
    for path in itertools.product(PHASES, repeat=4):
        state = starts(plan)[0]
        for phase in path:
            result = entered(plan, state, phase)
            if result is None:
                break
            check(plan, state, phase, *result)
            state = result[1]
        else:
            paths += 1
    assert paths == len(PHASES) ** 4 if plan.sleep_level != 2 else 3000 < paths < len(PHASES) ** 4


def test_a_separate_plan_never_moves_anything():
    for plan, path in itertools.product(SEPARATE, itertools.product(PHASES, repeat=2)):
        state = starts(plan)[0]
        assert all(moves_into(plan, state, phase) == [] for phase in path)


@pytest.mark.parametrize("phase", PHASES)
def test_an_optimizer_that_was_offloaded_in_a_separate_plan_is_an_error_that_says_so(phase):
    """Offloaded after a checkpoint, say. Phase, resource and both devices."""
    state = {**starts(SEPARATE[1])[0], Resource.OPTIMIZER_STATE: CPU}
    with pytest.raises(
        PlacementError, match=rf"phase {phase} of the separate plan needs optimizer_state on gpu, but it is on cpu.*"
        "something else than placement has moved it from gpu to cpu"
    ):  # fmt: skip
        moves_into(SEPARATE[1], state, phase)


@pytest.mark.parametrize(("resource", "source"), [
    (Resource.GRADIENTS, CPU), (Resource.POLICY_PARAMETERS, ABSENT), (Resource.OPTIMIZER_STATE, ABSENT),
    (Resource.REFERENCE_PARAMETERS, ABSENT), (Resource.ENGINE_KV_CACHE, CPU),
])  # fmt: skip
def test_moves_that_no_worker_can_make_are_refused(resource, source):
    plan = colocated(EVERYTHING, reference=True)
    phase = {Resource.ENGINE_KV_CACHE: "generation", Resource.REFERENCE_PARAMETERS: "logprobs"}.get(
        resource, "policy_training"
    )
    state = {**starts(plan)[0], resource: source}
    with pytest.raises(PlacementError, match=rf"{phase} .*{resource} on gpu.*no such move from {source} to gpu"):
        moves_into(plan, state, phase)


def test_after_training_the_engine_wakes_its_weights_then_takes_the_refit_then_its_cache():
    plan = colocated(EVERYTHING, reference=True)
    state = starts(plan)[0]
    for phase in ("refit", "generation", "logprobs", "policy_training"):
        state = entered(plan, state, phase)[1]
    told = []
    for phase in ("refit", "generation"):
        moves, state = entered(plan, state, phase)
        told += [(str(each.resource), str(each.target), each.part) for each in moves] + [phase]
    assert told == [
        ("gradients", "absent", "offload"), ("optimizer_state", "cpu", "offload"), ("engine_weights", "gpu", "wake"),
        "refit",
        ("policy_parameters", "cpu", "offload"), ("engine_kv_cache", "gpu", "wake"),
        "generation",
    ]  # fmt: skip
