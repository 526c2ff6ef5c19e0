import itertools

import pytest

from grpo.telemetry.timers import PHASES, Charge, PhaseTimer


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timer(clock):
    return PhaseTimer(clock=clock)


def test_every_second_belongs_to_one_phase_and_the_rest_is_other(timer, clock):
    with timer.step() as times:
        clock.now += 0.5
        with timer.phase("generation"):
            clock.now += 3.0
        clock.now += 0.25
        with timer.phase("policy_training"):
            clock.now += 2.0
    assert times["timing/total"] == 5.75
    assert times["timing/generation"] == 3.0
    assert times["timing/policy_training"] == 2.0
    assert times["timing/other"] == 0.75
    assert all(times[f"timing/{phase}"] == 0.0 for phase in PHASES if phase not in ("generation", "policy_training"))


def test_a_phase_and_a_part_entered_again_add_up(timer, clock):
    with timer.step() as times:
        for seconds in (1.0, 4.0):
            with timer.phase("refit"), timer.part("transfer"):
                clock.now += seconds
        with timer.phase("refit"):
            timer.add_part("transfer", 0.5)
            clock.now += 1.0
    assert times["timing/refit"] == 6.0
    assert times["timing/refit/transfer"] == 5.5
    assert times["timing/other"] == 0.0


def test_a_step_starts_from_zero(timer, clock):
    with timer.step(), timer.phase("refit"), timer.part("load"):
        clock.now += 9.0
    with timer.step() as times:
        clock.now += 1.0
    assert times["timing/refit"] == 0.0
    assert "timing/refit/load" not in times
    assert times["timing/total"] == times["timing/other"] == 1.0


def test_phases_do_not_nest(timer):
    with timer.step(), timer.phase("generation"), pytest.raises(RuntimeError, match="'rewards' inside phase 'gen"):  # noqa: SIM117
        with timer.phase("rewards"):
            pass


def test_parts_do_not_nest(timer):
    with timer.step(), timer.phase("refit"), timer.part("export"), pytest.raises(RuntimeError, match="inside part"):  # noqa: SIM117
        with timer.part("load"):
            pass


def test_order_of_step_phase_part_is_kept(timer):
    with pytest.raises(RuntimeError, match="outside a step"), timer.phase("data"):
        pass
    with timer.step(), pytest.raises(RuntimeError, match="outside a phase"), timer.part("export"):
        pass
    with timer.step(), pytest.raises(RuntimeError, match="already"), timer.step():
        pass


def test_an_unknown_phase_names_the_valid_ones(timer):
    with timer.step(), pytest.raises(ValueError, match=r"'sampling'; phases: data, refit, .*checkpoint"):  # noqa: SIM117
        with timer.phase("sampling"):
            pass


def test_an_exception_closes_what_is_open_and_the_times_are_there(timer, clock):
    times = {}
    with pytest.raises(KeyError):  # noqa: PT012, SIM117
        with timer.step() as times, timer.phase("refit"), timer.part("load"):
            assert timer.current_phase == "refit"
            clock.now += 2.0
            raise KeyError
    assert times["timing/total"] == times["timing/refit"] == times["timing/refit/load"] == 2.0
    assert timer.current_phase is None
    with timer.step() as times, timer.phase("data"), timer.part("load"):
        clock.now += 1.0
    assert times["timing/data"] == 1.0


def test_the_device_is_waited_for_before_each_reading():
    log = []
    readings = itertools.count()
    clock = lambda: log.append("clock") or float(next(readings))  # noqa: E731
    timer = PhaseTimer(clock=clock, synchronise=lambda: log.append("wait"))
    with timer.step(), timer.phase("generation"):
        pass
    assert log == ["wait", "clock"] * 4


def test_what_makes_a_phase_ready_is_charged_where_it_belongs(clock):
    def entering(phase):
        clock.now += 4.0
        return [Charge("generation", "sleep", 1.0), Charge(phase, "onload", 3.0)]

    timer = PhaseTimer(clock=clock, entering=entering)
    with timer.step() as times:
        for _ in range(2):
            with timer.phase("logprobs"):
                clock.now += 2.0
    assert times["timing/generation"] == times["timing/generation/sleep"] == 2.0
    assert times["timing/logprobs/onload"] == 6.0
    assert times["timing/logprobs"] == 10.0
    assert (times["timing/total"], times["timing/other"]) == (12.0, 0.0)


def test_every_phase_is_made_ready_before_it_begins(clock):
    entered = []
    timer = PhaseTimer(clock=clock, entering=lambda phase: entered.append((phase, timer.current_phase)) or [])
    with timer.step():
        for phase in PHASES:
            with timer.phase(phase):
                pass
    assert entered == [(phase, None) for phase in PHASES]


def test_a_phase_that_cannot_be_made_ready_does_not_begin(clock):
    def entering(phase):
        raise ZeroDivisionError

    timer = PhaseTimer(clock=clock, entering=entering)
    with pytest.raises(ZeroDivisionError), timer.step() as times, timer.phase("refit"):
        clock.now += 1.0
    assert times["timing/refit"] == 0.0
    assert timer.current_phase is None
