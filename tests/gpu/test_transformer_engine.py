"""Megatron-Core policies of Transformer Engine's layers against those of Megatron's own, on the same weights.

Their weights are the same bits, so that their results differ by bfloat16's rounding alone. Both are held against
Megatron's own layers in float32, and Transformer Engine's may be no further from it than twice the others'.
"""

import importlib
import importlib.util
import warnings

import pytest
import torch

from grpo.workers.policy.forward import needed_lengths
from tests.support.policy import random_batch, tiny_config, tiny_model, whole_state
from tests.support.policy_state import assert_same

pytestmark = pytest.mark.filterwarnings("ignore")
FAMILIES = ["llama", "qwen2", "qwen3"]
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
# The longest sequence of a pack is not its first, and the lengths are no multiples of anything.
LENGTHS, PROMPTS = (5, 41, 3, 90, 27, 64), (2, 11, 1, 30, 5, 9)
BATCHING = {
    "packed": {"sequence_packing": {"enabled": True, "train_mb_tokens": 140, "logprob_mb_tokens": 240}},
    "padded": {"train_micro_batch_size": 2, "logprob_batch_size": 3},
}
SLACK = 2.0


@pytest.fixture(autouse=True)
def _installed(device):
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    for name in ("transformer_engine", "megatron"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")


@pytest.fixture
def make():
    """A policy of the family: of Transformer Engine's layers, or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from grpo.models.megatron.shape import ModelShape

        module = importlib.import_module("grpo.workers.megatron.policy")
    patched = pytest.MonkeyPatch()

    def policy(kind, *, engine, batching="packed", seed=0, tied=False, dtype="bfloat16", **megatron):
        if not engine:
            patched.setattr(module, "transformer_engine_usable", lambda *_: False)
        model = tiny_model(kind, tied=tied, seed=seed, initializer_range=0.08, **SIZES)
        config = tiny_config(
            policy={
                "precision": dtype, "max_total_sequence_length": 120, "megatron_cfg": {"enabled": True, **megatron},
                "dtensor_cfg": {"enabled": False}, "optimizer": {"kwargs": {"lr": 1e-3, "eps": 1e-6}},
                **BATCHING[batching],
            }
        )  # fmt: skip
        found = module.MegatronPolicy(ModelShape.of(model.config), dict(model.state_dict()), config, device="cuda")
        patched.undo()
        modules = {type(each).__name__ for each in found._trained.model.modules()}
        assert ("TELayerNormColumnParallelLinear" in modules) == ("TEDotProductAttention" in modules) == engine
        return found

    return policy


def batch_of(seed=0):
    return random_batch(LENGTHS, PROMPTS, seed=seed)


def weights_of(policy):
    return {name: each.clone() for name, each in policy.export_weights()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_come_in_and_go_out_with_the_same_names_and_bits(make, kind, tied):
    policies = [make(kind, engine=engine, tied=tied) for engine in (True, False)]
    ours, theirs = map(weights_of, policies)
    assert list(ours) == list(theirs) == [each.name for each in policies[0].describe_weights()]
    given = dict(tiny_model(kind, tied=tied, initializer_range=0.08, **SIZES).named_parameters())
    assert ours.keys() == given.keys()
    for name, each in ours.items():
        assert torch.equal(each, theirs[name]), name
        assert torch.equal(each.cpu(), given[name].bfloat16()), name


@pytest.mark.parametrize("batching", list(BATCHING))
@pytest.mark.parametrize("kind", FAMILIES)
def test_both_layers_are_as_near_to_float32(make, kind, batching):
    exact, local, engine = (
        make(kind, engine=is_engine, dtype=dtype, batching=batching)
        for dtype, is_engine in (("float32", False), ("bfloat16", False), ("bfloat16", True))
    )
    batch = batch_of()
    assert needed_lengths(batch).tolist().index(89) > 0  # the longest is not the first
    true = exact.logprobs(batch)
    off = {name: (each.logprobs(batch) - true).abs() for name, each in (("local", local), ("engine", engine))}
    assert 0 < off["engine"].mean() < SLACK * off["local"].mean()
    assert off["engine"].max() < SLACK * off["local"].max()
    batch = batch.with_values(old_logprobs=true)
    results = {
        name: each.train(batch).metrics for name, each in (("true", exact), ("local", local), ("engine", engine))
    }
    for key, floor in (("loss", 2e-3), ("grad_norm", 1e-2)):
        wanted = results["true"][key]
        error = {name: abs(results[name][key] - wanted) for name in ("local", "engine")}
        assert error["engine"] < SLACK * error["local"] + floor * abs(wanted), key


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_mutated_neighbour_in_a_pack_changes_nothing(make, kind):
    policy, batch = make(kind, engine=True), batch_of()
    before = policy.logprobs(batch)
    tokens = batch.tokens.clone()
    start = sum(LENGTHS[:3])
    tokens[start : start + LENGTHS[3]] = (tokens[start : start + LENGTHS[3]] + 1) % 37
    after = policy.logprobs(batch.with_values(tokens=tokens))
    others = batch.sequence_ids != 3
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before, after)


@pytest.mark.parametrize("recompute", [True, False])
def test_gradients_of_every_weight_agree(make, recompute):
    """Cosine of the change of each weight's first moment, which is its gradient."""
    batch = batch_of()
    moments = []
    for engine in (True, False):
        policy = make("qwen3", engine=engine, activation_checkpointing=recompute and engine)
        policy.train(batch)
        moments.append({n: each for n, each in whole_state(policy)[0].items() if n.endswith("exp_avg")})
    for name, each in moments[0].items():
        cosine = torch.nn.functional.cosine_similarity(each.flatten(), moments[1][name].flatten(), 0)
        assert cosine > 0.99, (name, float(cosine))


@pytest.mark.parametrize("distributed", [True, False])
def test_a_restored_policy_goes_on(make, monkeypatch, distributed):
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    settings = {"distributed_data_parallel_config": {"use_distributed_optimizer": distributed}}
    policy, restored = (make("qwen2", engine=True, seed=seed, **settings) for seed in (0, 9))
    for seed in range(3):
        policy.train(batch_of(seed))
    saved = whole_state(policy)
    assert {name.rpartition(".")[2] for name in saved[0] if name.startswith("optimizer.")} == {
        "step", "exp_avg", "exp_avg_sq"
    }  # fmt: skip
    restored.train(batch_of())  # a used optimizer must not shine through
    restored.load_state(*saved)
    assert_same(whole_state(restored), saved)
    assert torch.equal(restored.logprobs(batch_of()), policy.logprobs(batch_of()))
    ours, theirs = (each.train(batch_of(3)).metrics for each in (restored, policy))
    assert ours == pytest.approx(theirs, rel=1e-3)
    for (name, mine), (_, other) in zip(restored.export_weights(), policy.export_weights(), strict=True):
        assert (mine.float() - other.float()).abs().max() < 1e-3, name


def test_each_takes_up_the_others_state(make):
    batch = batch_of()
    for first, second in ((True, False), (False, True)):
        policy, other = make("llama", engine=first), make("llama", engine=second, seed=7)
        policy.train(batch)
        saved = whole_state(policy)
        other.load_state(*saved)
        assert_same(whole_state(other), saved)
        wanted, found = (each.train(batch_of(1)).metrics for each in (policy, other))
        assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.03)


def test_float32_is_left_to_megatrons_own_layers(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from grpo.models.megatron.gpt import transformer_engine_usable

    device = torch.device("cuda")
    assert transformer_engine_usable(device, torch.bfloat16)
    assert not transformer_engine_usable(device, torch.float32)
