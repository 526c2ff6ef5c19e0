import pytest

from grpo.config import load_config
from grpo.config.resolve import DERIVATIONS
from grpo.config.schema import Config
from grpo.config.shape import at


def resolved(recipe, *overrides):
    return load_config(recipe, overrides).config


def test_lengths_follow_from_the_total():
    config = resolved("tiny", "policy.generation.max_new_tokens=null")
    assert config.policy.generation.max_new_tokens == 16
    assert config.policy.generation.validation.max_new_tokens == 16
    assert config.policy.generation.vllm_cfg.max_model_len == 16
    assert config.data.max_input_seq_length == 15
    assert resolved("tiny", "policy.generation.min_new_tokens=2").data.max_input_seq_length == 14


def test_what_is_given_is_kept():
    config = resolved("tiny", "data.max_input_seq_length=9", "policy.generation.validation.max_new_tokens=4")
    assert (config.data.max_input_seq_length, config.policy.generation.validation.max_new_tokens) == (9, 4)


@pytest.mark.parametrize(
    ("kind", "cap", "low", "high"),
    [
        ("token", None, None, None), ("sequence", None, None, None), ("tis", 2, None, None), ("mis", 2, None, None),
        ("icepop", None, 0.5, 5), ("seq-mask-tis", None, 0.999, 1.002),
    ],
)  # fmt: skip
def test_the_correction_gets_the_bounds_of_its_kind(kind, cap, low, high):
    loss = resolved("tiny", f"loss_fn.importance_sampling_correction_type={kind}").loss_fn
    bounds = (
        loss.truncated_importance_sampling_ratio,
        loss.importance_sampling_ratio_min,
        loss.importance_sampling_ratio_max,
    )
    assert bounds == (cap, low, high)


def test_the_norm_length_is_for_its_aggregation_alone():
    assert resolved("tiny").loss_fn.aggregation_norm_length is None
    assert resolved("tiny", "loss_fn.aggregation=seq_mean_token_sum_norm").loss_fn.aggregation_norm_length == 2


def test_the_only_env_is_the_default():
    config = resolved("tiny", "data.default.env_name=null")
    assert (config.data.train.env_name, config.data.validation.env_name) == ("exact_match", "exact_match")


def test_micro_batch_tokens_follow_from_batch_sizes():
    batching = resolved("grpo_math_8b", "policy.train_micro_batch_size=3").policy.sequence_packing
    assert (batching.train_mb_tokens, batching.logprob_mb_tokens) == (3 * 4096, 2 * 4096)


def test_every_derivation_is_of_a_key_that_may_be_null():
    assert [key for key, _ in DERIVATIONS if not at(Config, key).nullable] == []


@pytest.mark.parametrize(
    ("recipe", "overrides", "launcher"),
    [
        ("tiny", [], "in_process"),
        ("grpo_math_1b", [], "in_process"),
        ("tiny", ["cluster.cpu_ranks=2"], "ray"),
        ("grpo_math_8b", [], "ray"),
        ("tiny", ["cluster.ray_address=auto"], "ray"),
        ("tiny", ["cluster.launcher=ray"], "ray"),
    ],
)
def test_several_processes_and_clusters_are_rays(recipe, overrides, launcher):
    assert resolved(recipe, *overrides).cluster.launcher == launcher
