import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.batching.batch import Batch
from grpo.errors import CheckpointError, ConfigError, ModelError
from grpo.workers.policy.dtensor import DTensorPolicy
from tests.support.policy import VOCABULARY, dense_logprobs, random_batch, tiny_config, tiny_model, whole_state

CUTS = {
    "one by one": {"train_micro_batch_size": 1},
    "two": {"train_micro_batch_size": 2},
    "four": {"train_micro_batch_size": 4},
    "all": {"train_micro_batch_size": 64},
    "dynamic": {"dynamic_batching": {"enabled": True, "train_mb_tokens": 24, "sequence_length_round": 4}},
    "packed": {"sequence_packing": {"enabled": True, "train_mb_tokens": 20}},
    "packed in one": {"sequence_packing": {"enabled": True, "train_mb_tokens": 99}},
    "balanced": {"sequence_packing": {"enabled": True, "train_mb_tokens": 20, "algorithm": "balanced"}},
    "chunks of two": {"train_micro_batch_size": 64, "logprob_chunk_size": 2},
    "activation checkpointing": {"train_micro_batch_size": 2, "dtensor_cfg": {"activation_checkpointing": True}},
}
FLOAT32_ERROR = 4e-6  # of the whole gradient, against float64
AGGREGATIONS = ["token_mean", "seq_mean_token_sum"]


def make(model, *, policy=None, loss_fn=None, reference=None):
    return DTensorPolicy(model, tiny_config(policy=policy, loss_fn=loss_fn), reference=reference)


def gradients_of_train(policy, batch):
    """What `train` returns, and the gradients that its optimizer step was given."""
    seen = {}
    step = policy._optimizer.step

    def recording(learning_rate):
        seen.update({name: each.grad.clone() for name, each in policy._masters.named_parameters()})
        step(learning_rate)

    policy._optimizer.step = recording
    result = policy.train(batch)
    policy._optimizer.step = step
    return result, seen


def dense_loss(model, batch, *, aggregation="token_mean", entropy_coef=0.0, kl=0.0):
    """Clipped loss (0.2, 0.2), k3 KL with its on-policy factor, entropy bonus: written out, in the model's dtype."""
    logits = []
    for tokens in batch.tokens.split(batch.lengths.tolist()):
        output = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
        logits.append(torch.cat([output[:1], output[:-1]]))  # row t predicts token t; the first row is never read
    log_p = torch.cat(logits)
    current = log_p.gather(1, batch.tokens[:, None])[:, 0]
    mask = batch.mask
    old, reference = (each.double().where(mask, 0.0) for each in (batch.old_logprobs, batch.reference_logprobs))
    ratio = (current - old).exp()
    advantage = batch.advantages.double()[batch.sequence_ids]
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    difference = reference - current
    k3 = (difference.exp() - 1 - difference).clamp(max=10.0)
    loss = loss + kl * k3 * (current - current.detach()).exp()
    loss = loss + entropy_coef * (log_p.exp() * log_p).sum(-1)
    rows = [each[kept] for each, kept in zip(
        loss.split(batch.lengths.tolist()), mask.split(batch.lengths.tolist()), strict=True
    )]  # fmt: skip
    rows = [each for each in rows if len(each)]
    if aggregation == "token_mean":
        return torch.cat(rows).mean()
    reduce = torch.mean if aggregation == "seq_mean_token_mean" else torch.sum
    return torch.stack([reduce(each) for each in rows]).mean()


def relative_error(ours, theirs):
    difference = sum((ours[name].double() - theirs[name]).square().sum() for name in theirs)
    return float((difference / sum(each.square().sum() for each in theirs.values())).sqrt())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("batching", [{"logprob_batch_size": 2}, {"sequence_packing": {"enabled": True}}])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_transformers(kind, tied, batching, temperature):
    model, batch = tiny_model(kind, tied=tied), random_batch(untrained=(1,))
    expected = dense_logprobs(tiny_model(kind, tied=tied).double(), batch, temperature).detach()
    ours = make(model, policy={**batching, "generation": {"temperature": temperature}}).logprobs(batch)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), expected, rtol=2e-5, atol=2e-5)
    assert (ours[~batch.mask] == 0).all()


def test_logprobs_are_aligned_with_their_tokens():
    # A model that is sure of next = previous + 1: identity embedding, no layers' contribution, shifted identity head.
    size = 8
    model = tiny_model(
        vocab_size=size,
        hidden_size=size,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=size,
        pad_token_id=None,
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(100 * torch.eye(size).roll(1, 0))
    tokens = torch.tensor([0, 1, 2, 3, 4, 3, 4, 5])
    mask = torch.tensor([False, True, True, True, True, False, True, True])
    batch = Batch(tokens, torch.tensor([5, 3]), mask, torch.zeros(8))
    logprobs = make(model).logprobs(batch)
    torch.testing.assert_close(logprobs, torch.zeros(8), rtol=0, atol=1e-6)
    wrong = make(model).logprobs(batch.with_values(tokens=tokens.clone().index_fill_(0, torch.tensor([2]), 6)))
    assert (wrong[[2, 3]] < -100).all()
    assert (wrong[[1, 4, 6, 7]].abs() < 1e-6).all()


@pytest.mark.parametrize(
    ("cut", "aggregation"), [*((cut, "seq_mean_token_mean") for cut in CUTS), *(("two", kind) for kind in AGGREGATIONS)]
)
def test_update_is_the_same_however_the_batch_is_cut(cut, aggregation):
    batch = random_batch(untrained=(2,))
    loss_fn = {"aggregation": aggregation, "entropy_coef": 0.1, "reference_policy_kl_penalty": 0.3}
    expected_model = tiny_model(tied=True).double()
    loss = dense_loss(expected_model, batch, aggregation=aggregation, entropy_coef=0.1, kl=0.3)
    loss.backward()
    expected = {name: each.grad for name, each in expected_model.named_parameters()}
    policy = make(
        tiny_model(tied=True), policy={"max_grad_norm": None, **CUTS[cut]}, loss_fn=loss_fn, reference=tiny_model()
    )
    result, ours = gradients_of_train(policy, batch)
    assert relative_error(ours, expected) < FLOAT32_ERROR
    norm = float(torch.stack([each.norm() for each in expected.values()]).norm())
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=2e-6)
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=2e-6)
    assert result.trained_tokens == int(batch.mask.sum()) == 19


@pytest.mark.parametrize("cut", CUTS)
def test_metrics_are_the_same_however_the_batch_is_cut(cut):
    batch = random_batch()
    whole = make(tiny_model(), policy={"train_micro_batch_size": 64}).train(batch).metrics
    ours = make(tiny_model(), policy=CUTS[cut]).train(batch).metrics
    assert ours.keys() == whole.keys()
    for name in whole.keys() - {"padding_efficiency"}:
        assert ours[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_every_architecture(kind, tied):
    batch = random_batch()
    expected_model = tiny_model(kind, tied=tied).double()
    dense_loss(expected_model, batch).backward()
    expected = {name: each.grad for name, each in expected_model.named_parameters()}
    _, ours = gradients_of_train(make(tiny_model(kind, tied=tied), policy={"max_grad_norm": None}), batch)
    assert ours.keys() == expected.keys()
    assert relative_error(ours, expected) < FLOAT32_ERROR


def test_repeating_every_row_leaves_the_update_unchanged():
    batch = random_batch()
    once, first = gradients_of_train(make(tiny_model()), batch)
    twice, second = gradients_of_train(make(tiny_model()), batch.select([0, 1, 2, 3, 4] * 2))
    assert twice.metrics["loss"] == pytest.approx(once.metrics["loss"], rel=1e-5)
    assert relative_error(second, {name: each.double() for name, each in first.items()}) < 1e-5


def test_a_sequence_without_trained_tokens_changes_nothing():
    batch = random_batch(untrained=(3,))
    one, first = gradients_of_train(make(tiny_model()), batch)
    other, second = gradients_of_train(make(tiny_model()), batch.select([0, 1, 2, 4]))
    assert one.metrics == other.metrics
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_batch_without_trained_tokens_makes_no_update():
    batch = random_batch()
    batch = batch.with_values(mask=torch.zeros_like(batch.mask))
    policy = make(tiny_model(), policy={"scheduler": {"warmup_steps": 10}})
    policy.train(random_batch())
    before = whole_state(policy)
    result = policy.train(batch)
    assert result.trained_tokens == 0
    assert result.metrics["loss"] == result.metrics["grad_norm"] == 0.0
    assert_same(whole_state(policy), before)
    assert (policy.logprobs(batch) == 0).all()


def test_on_policy_ratio_needs_no_old_logprobs():
    batch = random_batch()
    given = make(tiny_model())
    batch = batch.with_values(old_logprobs=given.logprobs(batch))
    result, expected = gradients_of_train(given, batch)
    on_policy = make(tiny_model(), loss_fn={"force_on_policy_ratio": True})
    other, ours = gradients_of_train(on_policy, batch.with_values(old_logprobs=None))
    assert relative_error(ours, {name: each.double() for name, each in expected.items()}) < 1e-5
    assert other.metrics["probs_ratio"] == 1.0
    assert other.metrics["gen_kl_error"] == pytest.approx(result.metrics["gen_kl_error"], rel=1e-4)


def test_clipping_keeps_the_direction_and_reports_the_norm_before_it():
    batch = random_batch()
    free, first = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": None}), batch)
    bound = free.metrics["grad_norm"] / 4
    clipped, second = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": bound}), batch)
    loose, third = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": bound * 8}), batch)
    assert clipped.metrics["grad_norm"] == loose.metrics["grad_norm"] == free.metrics["grad_norm"]
    for name in first:
        torch.testing.assert_close(second[name], first[name] / 4, rtol=1e-4, atol=0)
        assert torch.equal(third[name], first[name])


def test_a_gradient_that_is_not_finite_is_an_error_and_changes_nothing():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    bad = batch.advantages.clone()
    bad[1] = torch.nan
    with pytest.raises(FloatingPointError, match=r"update 2: the gradient norm is nan over 21 trained tokens"):
        policy.train(batch.with_values(advantages=bad))
    assert_same(whole_state(policy), before)
    policy.train(batch)  # no gradient is left over
    other = make(tiny_model())
    other.train(batch)
    other.train(batch)
    assert_same(whole_state(policy), whole_state(other))


def test_updates_are_those_of_adamw_on_the_dense_model():
    settings = {"lr": 1e-2, "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}
    schedule = {"warmup_steps": 2, "decay": "linear", "decay_steps": 4}
    policy = make(
        tiny_model(), policy={"optimizer": {"kwargs": settings}, "scheduler": schedule, "max_grad_norm": None}
    )
    model, batch = tiny_model().double(), random_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6)
    for rate in (0.005, 0.01, 0.01, 0.0075):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        dense_loss(model, batch).backward()
        optimizer.step()
        assert policy.train(batch).metrics["learning_rate"] == pytest.approx(rate)
    assert policy.weight_version == 4
    for (name, ours), theirs in zip(policy.export_weights(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=1e-4, atol=1e-5, msg=name)


def assert_same(ours, theirs):
    assert ours[1] == theirs[1]
    assert ours[0].keys() == theirs[0].keys()
    for name in theirs[0]:
        assert torch.equal(ours[0][name], theirs[0][name]), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_restored_policy_goes_on_bit_for_bit(precision, tied):
    settings = {"precision": precision, "scheduler": {"warmup_steps": 4}, "optimizer": {"kwargs": {"lr": 1e-3}}}
    batches = [random_batch(seed=seed) for seed in range(5)]
    policy = make(tiny_model(tied=tied), policy=settings)
    for batch in batches[:3]:
        policy.train(batch)
    saved = whole_state(policy)
    results = [policy.train(batch) for batch in batches[3:]]
    restored = make(tiny_model(tied=tied, seed=9), policy=settings)
    restored.train(batches[0])  # a used optimizer must not shine through
    restored.load_state(*saved)
    assert_same(whole_state(restored), saved)
    assert [restored.train(batch) for batch in batches[3:]] == results
    assert_same(whole_state(restored), whole_state(policy))
    assert torch.equal(restored.logprobs(batches[0]), policy.logprobs(batches[0]))


def test_a_fresh_policy_can_be_saved_and_restored():
    policy, batch = make(tiny_model()), random_batch()
    saved = whole_state(policy)
    assert not any(name.startswith("optimizer.") for name in saved[0])
    restored = make(tiny_model(seed=3))
    restored.train(batch)
    restored.load_state(*saved)
    assert restored.train(batch) == policy.train(batch)


def test_restoring_does_not_keep_the_given_tensors():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    saved = whole_state(policy)
    kept = {name: each.clone() for name, each in saved[0].items()}
    policy.load_state(*saved)
    policy.train(batch)
    assert all(torch.equal(saved[0][name], kept[name]) for name in kept)


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_loaded():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    wider = make(tiny_model(intermediate_size=44))
    with pytest.raises(CheckpointError, match=r"another model: model\.model\.layers\.0\.mlp.*shape \[44, 24\] there"):
        policy.load_state(*whole_state(wider))
    deeper = make(tiny_model(num_hidden_layers=3))
    with pytest.raises(CheckpointError, match=r"names differ, first model\.model\.layers\.2"):
        policy.load_state(*whole_state(deeper))
    tensors = {name: each for name, each in before[0].items() if not name.endswith("lm_head.weight.exp_avg")}
    with pytest.raises(CheckpointError, match=r"1 names differ, first lm_head\.weight\.exp_avg"):
        policy.load_state(tensors, before[1])
    assert_same(whole_state(policy), before)


def test_exported_weights_have_transformers_names_and_tied_ones_come_once():
    for tied, head in ((True, False), (False, True)):
        policy = make(tiny_model(tied=tied))
        names = [name for name, _ in policy.export_weights()]
        assert len(names) == len(set(names))
        assert "model.embed_tokens.weight" in names
        assert ("lm_head.weight" in names) == head
        policy.train(random_batch())
        other = tiny_model(tied=tied, seed=5)
        other.load_state_dict(dict(policy.export_weights()), strict=False)
        other.tie_weights()
        batch = random_batch()
        torch.testing.assert_close(policy.logprobs(batch), dense_logprobs(other, batch).detach(), rtol=1e-4, atol=1e-5)


def test_reference_stays_what_it_was():
    loss_fn = {"reference_policy_kl_penalty": 0.1}
    batch = random_batch()
    policy = make(tiny_model(), policy={"optimizer": {"kwargs": {"lr": 1e-2}}}, loss_fn=loss_fn, reference=tiny_model())
    before = policy.reference_logprobs(batch)
    assert torch.equal(before, policy.logprobs(batch))
    policy.train(batch)
    assert torch.equal(policy.reference_logprobs(batch), before)
    assert not torch.allclose(policy.logprobs(batch), before)


def test_reference_is_there_exactly_for_a_kl_term():
    with pytest.raises(AssertionError, match="KL term"):
        make(tiny_model(), reference=tiny_model())
    with pytest.raises(AssertionError, match="KL term"):
        make(tiny_model(), loss_fn={"reference_policy_kl_penalty": 0.1})
    with pytest.raises(AssertionError, match="reference_policy_kl_penalty is 0"):
        make(tiny_model()).reference_logprobs(random_batch())


def test_training_refuses_wrong_old_logprobs():
    batch = random_batch()
    with pytest.raises(AssertionError, match="old log-probs"):
        make(tiny_model()).train(batch.with_values(old_logprobs=None))
    with pytest.raises(AssertionError, match="old log-probs"):
        make(tiny_model(), loss_fn={"force_on_policy_ratio": True}).train(batch)


def test_bfloat16_masters_keep_updates_that_bfloat16_would_swallow():
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(0.02)
    settings = {"lr": 1e-6, "weight_decay": 0.0}
    policy = make(model, policy={"precision": "bfloat16", "optimizer": {"kwargs": settings}})
    start = dict(whole_state(policy)[0])["model.model.layers.0.mlp.down_proj.weight"].clone()
    rounded = dict(policy.export_weights())["model.layers.0.mlp.down_proj.weight"].clone()
    for _ in range(3):
        policy.train(random_batch())
    moved = whole_state(policy)[0]["model.model.layers.0.mlp.down_proj.weight"] - start
    assert moved.abs().max() == pytest.approx(3e-6, rel=0.1)  # Adam's first steps are of the learning rate's size
    now = dict(policy.export_weights())["model.layers.0.mlp.down_proj.weight"]
    assert now.dtype == torch.bfloat16
    assert torch.equal(now, rounded)  # 3e-6 is less than half of bfloat16's spacing there


def test_bfloat16_compute_is_near_float32():
    batch = random_batch()
    wide, narrow = make(tiny_model()), make(tiny_model(), policy={"precision": "bfloat16"})
    assert narrow.logprobs(batch).dtype == torch.float32
    batch = batch.with_values(old_logprobs=wide.logprobs(batch))
    assert (narrow.logprobs(batch) - batch.old_logprobs).abs().mean() < 0.05
    one, first = gradients_of_train(wide, batch)
    other, second = gradients_of_train(narrow, batch)
    assert second["lm_head.weight"].dtype == torch.float32
    assert relative_error(second, {name: each.double() for name, each in first.items()}) < 0.05
    assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=0.02)


def test_bfloat16_forward_sees_the_updated_masters():
    policy = make(
        tiny_model(), policy={"precision": "bfloat16", "optimizer": {"kwargs": {"lr": 1e-2, "weight_decay": 0.0}}}
    )
    policy.train(random_batch())
    masters = whole_state(policy)[0]
    for name, exported in policy.export_weights():
        assert torch.equal(exported, masters[f"model.{name}"].bfloat16()), name


def test_padding_efficiency_counts_what_is_computed():
    batch = random_batch(lengths=(11, 3), prompts=(1, 1))
    # The last token of a sequence is never put in: 10 and 2 tokens are.
    static = make(tiny_model(), policy={"train_micro_batch_size": 2}).train(batch)
    packed = make(tiny_model(), policy={"sequence_packing": {"enabled": True}}).train(batch)
    assert static.metrics["padding_efficiency"] == pytest.approx(12 / 20)
    assert packed.metrics["padding_efficiency"] == 1.0


class WidestLogits(TorchDispatchMode):
    """The most rows that any float32 result as wide as the vocabulary had."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in [] if func.is_view else tree_leaves(result):  # a transposed weight is as wide
            if isinstance(each, torch.Tensor) and each.dtype == torch.float32 and each.shape[1:] == (VOCABULARY,):
                self.rows = max(self.rows, each.shape[0])
        return result


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_chunk_size_bounds_the_logits_of_both_passes(precision):
    batch = random_batch()
    for chunk_size, widest in ((None, 21), (4, 4)):
        policy = make(
            tiny_model(),
            policy={
                "logprob_chunk_size": chunk_size, "precision": precision,
                "train_micro_batch_size": 64, "logprob_batch_size": 64,
            },
            loss_fn={"entropy_coef": 0.1},
        )  # fmt: skip
        for phase in (policy.train, policy.logprobs):
            with WidestLogits() as seen:
                phase(batch)
            assert seen.rows == widest


@pytest.mark.parametrize(("enabled", "calls_expected"), [(True, 2), (False, 1)])
def test_activation_checkpointing_runs_each_layer_again(enabled, calls_expected):
    model, calls = tiny_model(), []
    policy = make(model, policy={"train_micro_batch_size": 64, "dtensor_cfg": {"activation_checkpointing": enabled}})
    model.model.layers[1].self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.train(random_batch())
    assert len(calls) == calls_expected


def test_forward_passes_of_an_update_are_its_micro_batches():
    model, calls = tiny_model(), []
    policy = make(model, policy={"train_micro_batch_size": 2})
    model.model.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.train(random_batch(untrained=(0,)))
    assert len(calls) == 2  # four sequences have something to train


def test_every_metric_is_a_plain_finite_number():
    metrics = make(tiny_model()).train(random_batch()).metrics
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values()), metrics


def test_an_unsupported_architecture_is_refused():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    with pytest.raises(ModelError, match="model_type 'gemma2'"):
        make(Gemma2ForCausalLM(config))


def test_from_config_loads_model_and_reference(tmp_path):
    from grpo.models.shipped import materialise

    folder = materialise("tiny-digits", tmp_path / "model", seed=3)
    for penalty in (0.0, 0.1):
        config = tiny_config(policy={"model_name": str(folder)}, loss_fn={"reference_policy_kl_penalty": penalty})
        config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"gpus_per_node": 0})})
        policy = DTensorPolicy.from_config(config)
        assert (policy._reference is not None) == (penalty != 0)
        batch = random_batch()
        batch = batch.with_values(tokens=batch.tokens % 10)
        if penalty:
            assert torch.equal(policy.reference_logprobs(batch), policy.logprobs(batch))
            policy.train(batch)
            assert not torch.equal(policy.reference_logprobs(batch), policy.logprobs(batch))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"cluster\.gpus_per_node is 1 but torch finds no GPU"):
        DTensorPolicy.from_config(tiny_config())
