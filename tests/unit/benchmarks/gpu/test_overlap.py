"""The command for two GPUs, as far as a machine without any can tell."""

from benchmarks.gpu.overlap import RECIPE, files, separate
from benchmarks.overlap import ENDLESS, SYNC
from grpo.config import layout, load_config


def test_one_gpu_trains_and_one_samples_or_both_do_both(tmp_path):
    given = files(tmp_path)
    asynchronous = load_config(str(RECIPE), [*ENDLESS, *separate(given)]).config
    synchronous = load_config(str(RECIPE), [*ENDLESS, *given, *SYNC]).config
    assert (layout(asynchronous).training_gpus, layout(asynchronous).generation_gpus) == (1, 1)
    assert asynchronous.grpo.async_grpo.in_flight_weight_updates
    assert not synchronous.grpo.async_grpo.enabled
    assert asynchronous.policy.generation.replay_lengths == synchronous.policy.generation.replay_lengths
