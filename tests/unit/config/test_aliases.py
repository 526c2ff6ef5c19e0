import pytest

from grpo.config import load_config
from grpo.config.aliases import ALIASES, HINTS, hint_for
from grpo.config.schema import Config
from grpo.config.shape import at
from grpo.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("loss_fn.token_level_loss=false", "aggregation", "seq_mean_token_mean"),
        ("loss_fn.token_level_loss=true", "aggregation", "token_mean"),
        ("loss_fn.sequence_level_importance_ratios=false", "kind", "clipped"),
        ("loss_fn.truncated_importance_sampling_type=icepop", "importance_sampling_correction_type", "icepop"),
        ("loss_fn.use_kl_in_reward=false", "reference_policy_kl_in", "loss"),
    ],
)
def test_an_alias_is_read_and_noted(override, key, value):
    resolved = load_config("tiny", [override])
    old, _, given = override.partition("=")
    assert getattr(resolved.config.loss_fn, key) == value
    assert resolved.provenance[f"loss_fn.{key}"] == f"override as {old}"
    shown = given if given in ("true", "false") else f'"{given}"'
    assert resolved.notes == (f'{old}={shown} (override) is read as loss_fn.{key}="{value}"',)


def test_an_override_by_alias_wins_over_the_file_and_the_reverse(write):
    path = write("defaults: tiny\nloss_fn: {token_level_loss: false}\n")
    assert load_config(path).config.loss_fn.aggregation == "seq_mean_token_mean"
    assert load_config(path, ["loss_fn.aggregation=token_mean"]).config.loss_fn.aggregation == "token_mean"


def test_both_spellings_together_are_refused():
    with pytest.raises(
        ConfigError, match=r"loss_fn.token_level_loss \(override\) and loss_fn.aggregation \(override\) say the same"
    ):
        load_config("tiny", ["loss_fn.token_level_loss=true", "loss_fn.aggregation=token_mean"])


@pytest.mark.parametrize("value", ["1", "yes", "[1]", "null"])
def test_an_alias_with_a_wrong_value_is_refused(value):
    with pytest.raises(ConfigError, match="expected true or false"):
        load_config("tiny", [f"loss_fn.token_level_loss={value}"])


def test_aliases_lead_to_keys_and_neither_they_nor_hints_hide_one():
    assert all(at(Config, alias.new) is not None for alias in ALIASES.values())
    assert [old for old in (*ALIASES, *HINTS) if at(Config, old) is not None] == []


def test_hints_go_by_the_longest_prefix():
    assert hint_for("policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32") == (
        "gradients are always summed in float32"
    )
    assert hint_for("policy.megatron_cfg.optimizer.lr") == "use policy.optimizer.kwargs.lr"
    assert (
        hint_for("policy.megatron_cfg.optimizer.min_lr") == "both backends take policy.optimizer and policy.scheduler"
    )
    assert hint_for("grpo.seed") is None
