"""What arrives with a refit: the engine's log-probs of what it samples are the trainer's, by the bounds of the matrix.

Both engines, both policy backends, temperatures other than 1, weights that were trained before they were sent.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo.batching.batch import Batch
from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.refit.local import LocalRefit
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.local import make_local_generator
from grpo.workers.protocol import Generator
from tests.support.generation import make_config, write_model
from tests.support.generator_contract import PROMPTS, plain
from tests.support.mismatch import broken_bounds
from tests.support.placement_cells import config_of, make_policy
from tests.support.policy import random_batch

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]
TEMPERATURES = (0.7, 1.0, 1.3)
SEEDS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(scope="module", params=["hf", "vllm"])
def engine(request, folder) -> Iterator[Generator]:
    started = make_local_generator(make_config(folder, backend=request.param), folder)
    yield started
    started.shutdown()


def trained_policy(folder, backend, temperature, precision="float32"):
    """After two updates that move it far from the weights of the folder."""
    config = config_of(
        folder, backend=backend, precision=precision, generation={"backend": "hf", "temperature": temperature},
        optimizer={"kwargs": {"lr": 3e-3}},
    )  # fmt: skip
    policy = make_policy(config, folder, device="cpu")
    for seed in range(2):
        policy.train(random_batch(seed=seed))
    return policy


def rollout(engine, sampling) -> Batch:
    groups = engine.generate(PROMPTS, 3, sampling, SEEDS)
    rows = [(prompt, each) for prompt, group in zip(PROMPTS, groups, strict=True) for each in group]
    logprobs = [value for prompt, each in rows for value in [0.0] * len(prompt) + list(each.logprobs)]
    trained = [value for prompt, each in rows for value in [False] * len(prompt) + [True] * len(each.token_ids)]
    return Batch(
        tokens=torch.tensor([token for prompt, each in rows for token in [*prompt, *each.token_ids]]),
        lengths=torch.tensor([len(prompt) + len(each.token_ids) for prompt, each in rows]),
        mask=torch.tensor(trained),
        generation_logprobs=torch.tensor(logprobs),
        advantages=torch.linspace(-1, 1, len(rows)),
    )


def broken(policy, batch, precision="float32") -> list[str]:
    """The bounds that an update on `batch` does not keep."""
    values = {"old_logprobs": policy.logprobs(batch), "reference_logprobs": policy.reference_logprobs(batch)}
    metrics = policy.train(batch.with_values(**values)).metrics
    return broken_bounds([{f"train/{name}": value for name, value in metrics.items()}], precision)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
def test_the_engine_has_the_log_probs_of_the_policy(engine, folder, backend, temperature):
    policy = trained_policy(folder, backend, temperature)
    refit, timer = LocalRefit(policy, engine), PhaseTimer()
    for _ in range(2):  # each update is on what was sampled, as in a run; the second refit brings its result
        with timer.step():
            refit.ensure_current(timer)
        assert engine.weight_version == policy.weight_version
        assert broken(policy, rollout(engine, plain(9, temperature=temperature))) == []


def send(policy, engine, change=lambda name, each: each):
    weights = ((name, change(name, each)) for name, each in policy.export_weights())
    engine.update_weights(weights, policy.weight_version)


def stale(engine, policy, sampling):
    send(policy, engine)
    policy.train(random_batch(seed=5))
    return rollout(engine, sampling)


def at_another_temperature(engine, policy, sampling):
    send(policy, engine)
    return rollout(engine, plain(9, temperature=sampling.temperature * 1.3))


def with_a_swapped_head(engine, policy, sampling):
    """Two rows of the output weight have changed places."""
    send(policy, engine, change=lambda name, each: each.roll(1, 0) if name == "lm_head.weight" else each)
    return rollout(engine, sampling)


def with_a_head_three_percent_off(engine, policy, sampling):
    send(policy, engine, change=lambda name, each: each * 0.97 if name == "lm_head.weight" else each)
    return rollout(engine, sampling)


def filtered_by_top_p(engine, policy, sampling):
    send(policy, engine)
    return rollout(engine, plain(9, temperature=sampling.temperature, top_p=0.7))


def filtered_by_top_k(engine, policy, sampling):
    send(policy, engine)
    return rollout(engine, plain(9, temperature=sampling.temperature, top_k=5))


FAULTS = (
    stale, at_another_temperature, with_a_swapped_head, with_a_head_three_percent_off, filtered_by_top_p,
    filtered_by_top_k,
)  # fmt: skip


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_arrives_wrong_is_caught(engine, folder, fault, temperature):
    policy = trained_policy(folder, "dtensor", temperature)
    found = broken(policy, fault(engine, policy, plain(9, temperature=temperature)))
    assert {"train/logprob_difference", "train/logprob_difference_p99", "train/logprob_difference_max"} <= {*found}


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
def test_a_temperature_that_one_side_forgets_is_caught(engine, folder, backend, temperature):
    sampled_at = {"policy": temperature, "engine": 1.0}
    for forgetful, of_engine in sampled_at.items():
        policy = trained_policy(folder, backend, 1.0 if forgetful == "policy" else temperature)
        send(policy, engine)
        found = broken(policy, rollout(engine, plain(9, temperature=of_engine)))
        assert {"train/logprob_difference", "train/logprob_difference_p99", "train/logprob_difference_max"} <= {
            *found
        }, f"the {forgetful} forgets it"


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
def test_in_bfloat16_the_bounds_are_wider_and_still_tell_right_from_wrong(tmp_path, backend, temperature):
    folder = write_model(tmp_path, initializer_range=0.1)  # logits of a size that bfloat16 resolves
    policy = trained_policy(folder, backend, temperature, "bfloat16")
    engine = make_local_generator(make_config(folder, precision="bfloat16"), folder)
    sampling = plain(9, temperature=temperature)
    send(policy, engine)
    assert broken(policy, rollout(engine, sampling), "bfloat16") == []
    for fault in (stale, with_a_swapped_head, at_another_temperature, filtered_by_top_k):
        assert "train/logprob_difference" in broken(policy, fault(engine, policy, sampling), "bfloat16"), fault


@pytest.mark.parametrize(("key", "value"), [("top_p", "0.9"), ("top_k", "50")])
def test_training_with_a_filter_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"policy.generation.{key} = {value}"):
        load_config("tiny", [f"policy.generation.{key}={value}"])
