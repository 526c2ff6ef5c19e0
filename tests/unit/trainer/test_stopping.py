import signal

import pytest

from grpo.checkpoint.signals import Abandoned, StopRequest
from grpo.config.schema.run import Checkpointing
from grpo.errors import CheckpointError
from grpo.telemetry.journal import JournalWriter
from grpo.trainer.stopping import Stopping, exit_code_of, longest_save_s, seconds_of


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    from grpo.checkpoint import signals

    clock = Clock()
    monkeypatch.setattr(signals.time, "monotonic", clock)
    return clock


def limited(clock, limit=None, *, stop=None, grace=30.0, **options):
    settings = Checkpointing(checkpoint_must_save_by=limit, stop_grace_s=grace)
    return Stopping(stop or StopRequest(started=clock.now), settings, clock=clock, **options)


def step(stopping, clock, *, rollout=0.0, rest=0.0, save=None):
    began = clock.now
    with stopping.rollout():
        clock.now += rollout
    clock.now += rest
    if save is not None:
        clock.now += save
        stopping.saved(save)
    stopping.step_done(clock.now - began)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:00:00:00", 0), ("00:03:45:00", 13500), ("01:00:00:01", 86401), ("99:23:59:59", 8639999)]
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("stopped_by", "saved", "steps", "code"),
    [
        ("SIGTERM", True, 5, 85), ("SIGUSR1", True, 5, 85), ("checkpointing.checkpoint_must_save_by", True, 5, 85),
        ("SIGTERM", False, 0, 85), ("SIGTERM", False, 5, 1), ("SIGINT", True, 5, 130), ("SIGINT", False, 0, 130),
    ],
)  # fmt: skip
def test_exit_codes(stopped_by, saved, steps, code):
    assert exit_code_of(stopped_by, saved=saved, steps=steps) == code


def test_it_stops_while_another_step_and_save_still_fit(clock):
    stopping = limited(clock, "00:00:10:00")  # 600 s
    step(stopping, clock, rollout=60, rest=30, save=20)  # 110 s
    step(stopping, clock, rollout=40, rest=20)
    clock.now = 1000 + 600 - 110 - 1.25 * 20 - 1
    assert stopping.due() is None
    clock.now += 1
    assert stopping.due() == "checkpointing.checkpoint_must_save_by"


def test_before_the_first_save_it_is_expected_to_take_as_long_as_a_step(clock):
    stopping = limited(clock, "00:00:10:00")
    step(stopping, clock, rollout=60, rest=30)
    clock.now = 1000 + 600 - 180 - 1
    assert stopping.due() is None
    clock.now += 1
    assert stopping.due() is not None


def test_the_longest_save_of_the_run_before_counts(clock):
    stopping = limited(clock, "00:00:10:00", longest_save_s=100.0)
    step(stopping, clock, rollout=10, save=1)
    clock.now = 1000 + 600 - 11 - 125
    assert stopping.due() is not None


def test_without_limit_and_signal_nothing_stops(clock):
    stopping = limited(clock)
    clock.now += 1e9
    step(stopping, clock, rollout=1e9)
    assert stopping.due() is None


def test_a_rollout_that_leaves_no_time_for_the_rest_is_given_up(clock):
    stopping = limited(clock, "00:00:10:00")
    step(stopping, clock, rollout=60, rest=30, save=20)  # after its rollout 50 s, of which the save is expected again
    clock.now = 1000 + 600 - 50 - 25 - 1
    with stopping.rollout():
        pass
    with pytest.raises(Abandoned), stopping.rollout():
        clock.now += 1
    assert stopping.due() == "checkpointing.checkpoint_must_save_by"


def test_a_validation_needs_time_for_the_save_alone(clock):
    stopping = limited(clock, "00:00:10:00")
    step(stopping, clock, rollout=60, rest=30, save=20)
    clock.now = 1000 + 600 - 25 - 1
    with stopping.validation():
        pass
    with pytest.raises(Abandoned), stopping.validation():
        clock.now += 1


def test_a_limit_that_leaves_no_time_for_a_step_is_an_error_instead_of_an_endless_requeue(clock):
    stopping = limited(clock, "00:00:00:10")
    with pytest.raises(Abandoned), stopping.rollout():
        clock.now += 10
    with pytest.raises(CheckpointError, match="checkpoint_must_save_by=00:00:00:10: too little for one step"):
        stopping.due()


def test_after_a_signal_the_grace_period_bounds_the_rollout(clock):
    with StopRequest(started=clock.now) as stop:
        stopping = limited(clock, stop=stop, grace=120.0)
        step(stopping, clock, rollout=60, rest=30, save=20)
        with stopping.rollout():
            signal.raise_signal(signal.SIGUSR1)
            clock.now += 120 - 50 - 25 - 1
        with pytest.raises(Abandoned), stopping.rollout():
            clock.now += 1
        assert stopping.due() == "SIGUSR1"


def test_before_the_first_step_a_signal_gives_the_rollout_up_at_once(clock):
    with StopRequest(started=clock.now) as stop:
        stopping = limited(clock, stop=stop, grace=1e6)
        with pytest.raises(Abandoned), stopping.rollout():
            signal.raise_signal(signal.SIGTERM)
        assert stopping.due() == "SIGTERM"


def test_the_moves_of_a_step_are_expected_again_before_the_save(clock):
    """A rollout that is given up leaves policy and engine where sampling needs them, whatever earlier saves found."""
    stopping = limited(clock, "00:00:10:00")
    for moves in ([3, 5], [2, 4]):
        for seconds in moves:
            stopping.moved(seconds)
        step(stopping, clock, rollout=60, rest=30, save=20)
    clock.now = 1000 + 600 - 110 - 1.25 * (20 + 8) - 1
    assert stopping.due() is None
    clock.now += 1
    assert stopping.due() is not None
    clock.now = 1000 + 600 - 50 - 1.25 * (20 + 8) - 1
    with stopping.rollout():
        pass
    with pytest.raises(Abandoned), stopping.rollout():
        clock.now += 1


def test_the_longest_save_is_read_from_the_events(tmp_path):
    assert longest_save_s(tmp_path) == 0
    with JournalWriter(tmp_path / "events.jsonl") as events:
        for event in ({"kind": "checkpoint", "seconds": 3.0}, {"kind": "checkpoint", "seconds": 2.0},
                      {"kind": "validation", "seconds": 9.0}):  # fmt: skip
            events.append(event)
        assert longest_save_s(tmp_path) == 3.0
        events.append({"kind": "checkpoint", "seconds": 2.5, "staged_seconds": 1.0})
        assert longest_save_s(tmp_path) == 3.5
        events.append({"kind": "checkpoint", "seconds": 2.5, "staged_seconds": 0.5, "moved_seconds": 1.5})
    assert longest_save_s(tmp_path) == 4.5
