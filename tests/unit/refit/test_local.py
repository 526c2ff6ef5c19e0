import torch

from grpo.refit.local import LocalRefit
from grpo.telemetry.timers import PhaseTimer
from tests.support.rollouts import RecordingGenerator


class CountingPolicy:
    weight_version = 0

    def export_weights(self):
        yield "weight", torch.full((2,), float(self.weight_version))


def test_weights_travel_once_a_version_and_at_the_start_always():
    policy, generator, timer = CountingPolicy(), RecordingGenerator(), PhaseTimer()
    generator.weight_version = 0
    refit = LocalRefit(policy, generator)
    with timer.step() as first:
        refit.ensure_current(timer)
    with timer.step() as second:
        refit.ensure_current(timer)
    policy.weight_version = 3
    with timer.step():
        refit.ensure_current(timer)
    assert [(version, weights["weight"].tolist()) for version, weights in generator.received] == [
        (0, [0.0, 0.0]),
        (3, [3.0, 3.0]),
    ]
    assert first["timing/refit"] >= first["timing/refit/export"] + first["timing/refit/load"] > 0
    assert second["timing/refit"] == 0


def test_weights_that_the_engine_has_given_up_are_sent_again():
    policy, generator, timer = CountingPolicy(), RecordingGenerator(), PhaseTimer()
    refit = LocalRefit(policy, generator)
    for level in (1, 2):
        with timer.step():
            refit.ensure_current(timer)
        generator.sleep(level)
        if level == 1:
            with timer.step():
                refit.ensure_current(timer)
            generator.wake(["weights", "kv_cache"])
    assert [version for version, _ in generator.received] == [0]
    with timer.step() as times:
        refit.ensure_current(timer)
    assert [version for version, _ in generator.received] == [0, 0]
    assert times["timing/refit/load"] > 0
    assert refit.step_metrics()["performance/refit_gib"] == 8 / 2**30
    assert refit.step_metrics() == {}
