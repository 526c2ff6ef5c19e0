"""What the Megatron policy does in one process beyond the numbers of an update."""

import warnings

import pytest
import torch

from grpo.errors import CheckpointError, ConfigError, ModelError
from grpo.models.shipped import materialise
from grpo.workers.policy.dtensor import DTensorPolicy
from tests.support.policy import VOCABULARY, dense_logprobs, random_batch, tiny_config, tiny_model, whole_state
from tests.support.policy_state import (
    assert_same,
    check_that_a_fresh_policy_can_be_restored,
    check_that_a_restored_policy_goes_on,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.models.megatron.shape import ModelShape
    from grpo.workers.megatron.policy import MegatronPolicy

ADAMW = {"optimizer": {"kwargs": {"lr": 1e-3, "eps": 1e-6}}}
DISTRIBUTED = [True, False]
FAMILIES = ["llama", "qwen2", "qwen3"]


def make(model, *, policy=None, loss_fn=None, distributed=True, reference=None):
    policy = {**ADAMW, **(policy or {})}
    megatron = {"distributed_data_parallel_config": {"use_distributed_optimizer": distributed}}
    policy["megatron_cfg"] = {**megatron, **policy.get("megatron_cfg", {})}
    config = tiny_config(policy=policy, loss_fn=loss_fn)
    source = dict(model.state_dict())
    return MegatronPolicy(ModelShape.of(model.config), source, config, reference=reference)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_importing_and_exporting_gives_the_same_bits(kind, tied):
    model = tiny_model(kind, tied=tied)
    exported = dict(make(model).export_weights())
    given = dict(model.named_parameters())
    assert exported.keys() == given.keys()
    assert all(torch.equal(exported[name], given[name]) for name in given)


@pytest.mark.parametrize("distributed", DISTRIBUTED)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_restored_policy_goes_on_bit_for_bit(kind, precision, distributed):
    settings = {"precision": precision, "scheduler": {"warmup_steps": 4}}
    check_that_a_restored_policy_goes_on(
        lambda seed: make(tiny_model(kind, tied=kind == "qwen3", seed=seed), policy=settings, distributed=distributed)
    )


def test_a_fresh_policy_can_be_saved_and_restored():
    check_that_a_fresh_policy_can_be_restored(lambda seed: make(tiny_model(seed=seed)))


@pytest.mark.parametrize("kind", FAMILIES)
def test_either_backend_takes_up_the_state_of_the_other(kind):
    batches = [random_batch(seed=seed) for seed in range(3)]
    ours, theirs = make(tiny_model(kind)), DTensorPolicy(tiny_model(kind), tiny_config(policy=ADAMW))
    for policy in (ours, theirs):
        policy.train(batches[0])
    assert {name: each.shape for name, each in whole_state(ours)[0].items()} == {
        name: each.shape for name, each in whole_state(theirs)[0].items()
    }
    swapped = DTensorPolicy(tiny_model(kind, seed=5), tiny_config(policy=ADAMW))
    swapped.load_state(*whole_state(ours))
    taken = make(tiny_model(kind, seed=5))
    taken.load_state(*whole_state(theirs))
    for batch in batches[1:]:
        expected = theirs.train(batch).metrics
        for policy in (swapped, taken):
            metrics = policy.train(batch).metrics
            assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-6)
            assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_loaded():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    wider, deeper = make(tiny_model(intermediate_size=44)), make(tiny_model(num_hidden_layers=3))
    with pytest.raises(
        CheckpointError, match=r"another model: model\.model\.layers\.0\.mlp.*has shape \[44, 24\] there"
    ):
        policy.load_state(*whole_state(wider))
    with pytest.raises(CheckpointError, match=r"names differ, first model\.model\.layers\.2"):
        policy.load_state(*whole_state(deeper))
    tensors = {name: each for name, each in before[0].items() if not name.endswith("lm_head.weight.exp_avg")}
    with pytest.raises(CheckpointError, match=r"1 names differ, first optimizer\.lm_head\.weight\.exp_avg"):
        policy.load_state(tensors, before[1])
    assert_same(whole_state(policy), before)


@pytest.mark.parametrize("distributed", DISTRIBUTED)
def test_bfloat16_masters_start_from_float32_weights_and_keep_small_updates(distributed):
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(0.0200001)
    name = "model.layers.0.mlp.down_proj.weight"
    settings = {"precision": "bfloat16", "optimizer": {"kwargs": {"lr": 1e-6, "weight_decay": 0.0}}}
    policy = make(model, policy=settings, distributed=distributed)
    start = whole_state(policy)[0][f"model.{name}"].clone()
    assert torch.equal(start, model.get_parameter(name))  # not what bfloat16 makes of it
    rounded = dict(policy.export_weights())[name].clone()
    for _ in range(3):
        policy.train(random_batch())
    moved = whole_state(policy)[0][f"model.{name}"] - start
    assert moved.abs().max() == pytest.approx(3e-6, rel=0.1)
    now = dict(policy.export_weights())[name]
    assert now.dtype == torch.bfloat16
    assert torch.equal(now, rounded)


@pytest.mark.parametrize("distributed", DISTRIBUTED)
def test_bfloat16_forward_sees_the_updated_masters(distributed):
    policy = make(tiny_model(), policy={"precision": "bfloat16"}, distributed=distributed)
    policy.train(random_batch())
    masters = whole_state(policy)[0]
    for name, exported in policy.export_weights():
        assert torch.equal(exported, masters[f"model.{name}"].bfloat16()), name


@pytest.mark.parametrize("batching", [{"train_micro_batch_size": 2}, {"sequence_packing": {"enabled": True}}])
def test_bfloat16_is_near_float32(batching):
    batch = random_batch()
    wide, narrow = (make(tiny_model(), policy={**batching, "precision": each}) for each in ("float32", "bfloat16"))
    assert narrow.logprobs(batch).dtype == torch.float32
    batch = batch.with_values(old_logprobs=wide.logprobs(batch))
    assert (narrow.logprobs(batch) - wide.logprobs(batch)).abs().mean() < 0.05
    one, other = (policy.train(batch).metrics for policy in (wide, narrow))
    assert other["loss"] == pytest.approx(one["loss"], abs=0.02)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=0.05)


def test_a_batch_without_trained_tokens_makes_no_update():
    policy, batch = make(tiny_model(), policy={"scheduler": {"warmup_steps": 10}}), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    nothing = batch.with_values(mask=torch.zeros_like(batch.mask))
    result = policy.train(nothing)
    assert result.trained_tokens == 0
    assert result.metrics["loss"] == result.metrics["grad_norm"] == 0.0
    assert_same(whole_state(policy), before)
    assert (policy.logprobs(nothing) == 0).all()


def test_learning_rate_follows_the_schedule():
    schedule = {"warmup_steps": 2, "decay": "linear", "decay_steps": 4}
    policy = make(tiny_model(), policy={"scheduler": schedule})
    rates = [policy.train(random_batch()).metrics["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.0005, 0.001, 0.001, 0.00075])


def test_reference_stays_what_it_was():
    model, batch = tiny_model(), random_batch()
    policy = make(model, loss_fn={"reference_policy_kl_penalty": 0.1}, reference=dict(model.state_dict()))
    before = policy.reference_logprobs(batch)
    assert torch.equal(before, policy.logprobs(batch))
    policy.train(batch)
    assert torch.equal(policy.reference_logprobs(batch), before)
    assert not torch.allclose(policy.logprobs(batch), before)
    with pytest.raises(AssertionError, match="reference_policy_kl_penalty is 0"):
        make(model).reference_logprobs(batch)


def test_a_neighbour_in_a_pack_changes_nothing():
    policy = make(tiny_model("qwen3"), policy={"sequence_packing": {"enabled": True}})
    batch = random_batch(lengths=(7, 11, 6), prompts=(2, 3, 1))
    other = batch.tokens.clone()
    other[7:18] = (other[7:18] + 5) % VOCABULARY
    before, after = policy.logprobs(batch), policy.logprobs(batch.with_values(tokens=other))
    own = batch.sequence_ids != 1
    assert torch.equal(before[own], after[own])
    assert not torch.equal(before[~own], after[~own])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_of_the_temperature(temperature):
    model, batch = tiny_model(), random_batch()
    policy = make(model, policy={"generation": {"temperature": temperature}})
    expected = dense_logprobs(tiny_model().double(), batch, temperature).detach()
    torch.testing.assert_close(policy.logprobs(batch).double(), expected, rtol=1e-5, atol=1e-5)


def test_llama3_rope_equals_transformers():
    rope = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16, "rope_theta": 10000.0,
    }  # fmt: skip
    model, batch = tiny_model(rope_parameters=rope), random_batch(lengths=(40, 33), prompts=(3, 1))
    expected = dense_logprobs(model.double(), batch).detach()
    torch.testing.assert_close(make(model.float()).logprobs(batch).double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("enabled", "calls_expected"), [(True, 2), (False, 1)])
def test_activation_checkpointing_runs_each_layer_again(enabled, calls_expected):
    policy, calls = (
        make(
            tiny_model(), policy={"megatron_cfg": {"activation_checkpointing": enabled}, "train_micro_batch_size": 64}
        ),
        [],
    )
    policy._trained.model.decoder.layers[1].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.train(random_batch())
    assert len(calls) == calls_expected


def test_nothing_of_the_cpu_shim_stays_behind():
    current, reset = torch.cuda.current_device, torch.cuda.synchronize
    policy = make(tiny_model())
    policy.train(random_batch())
    assert (torch.cuda.current_device, torch.cuda.synchronize) == (current, reset)
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(1, device="cuda") if not torch.cuda.is_available() else torch.ones(1, device="cuda:99")


def test_from_config_reads_safetensors_and_random_weights(tmp_path):
    folder = materialise("tiny-llama", tmp_path / "model", seed=3)
    for settings in ({"model_name": str(folder)}, {"model_name": "tiny-llama", "random_weights": True}):
        config = tiny_config(policy=settings, loss_fn={"reference_policy_kl_penalty": 0.1})
        config = config.model_copy(update={
            "cluster": config.cluster.model_copy(update={"gpus_per_node": 0}),
            "grpo": config.grpo.model_copy(update={"seed": 3}),
        })  # fmt: skip
        ours, theirs, batch = MegatronPolicy.from_config(config), DTensorPolicy.from_config(config), random_batch()
        torch.testing.assert_close(ours.logprobs(batch), theirs.logprobs(batch), rtol=1e-5, atol=1e-5)
        # Not to the bit: products on a CPU depend on where in memory the weights begin.
        torch.testing.assert_close(ours.reference_logprobs(batch), ours.logprobs(batch), rtol=1e-6, atol=1e-6)


def test_weights_of_another_shape_are_refused():
    model = tiny_model()
    source = dict(model.state_dict()) | {"model.layers.1.mlp.down_proj.weight": torch.zeros(23, 40)}
    with pytest.raises(
        ModelError, match=r"layers\.1\.mlp\.down_proj\.weight has shape \[23, 40\] there and \[24, 40\] here"
    ):
        MegatronPolicy(ModelShape.of(model.config), source, tiny_config())


@pytest.mark.parametrize(
    ("megatron", "error", "message"),
    [
        ({"context_parallel_size": 2}, ConfigError, "context_parallel_size=2: this backend has no context parallel"),
        ({"tensor_model_parallel_size": 2}, ConfigError, "one copy of the model takes 2 ranks"),
        ({"tensor_model_parallel_size": 3}, ModelError, "does not divide the model's num_attention_heads 4"),
    ],
)
def test_layouts_that_cannot_be_are_refused(megatron, error, message):
    with pytest.raises(error, match=message):
        make(tiny_model(), policy={"megatron_cfg": {"enabled": True, **megatron}, "dtensor_cfg": {"enabled": False}})
