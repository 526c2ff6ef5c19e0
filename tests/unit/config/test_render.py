# ruff: noqa: E501 - one case a line
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.config import load_config
from grpo.recipes import shipped_recipes


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_the_whole_resolved_recipe(name, snapshot):
    assert load_config(name).to_yaml() == snapshot


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_the_rendered_recipe_loads_to_the_same(name, write):
    resolved = load_config(name)
    again = load_config(write(resolved.to_yaml()))
    assert again.config == resolved.config
    assert "default" not in set(again.provenance.values())


text = st.text(max_size=12)
overrides = st.fixed_dictionaries(
    {},
    optional={
        "grpo.seed": st.integers(0, 2**63),
        "policy.optimizer.kwargs.lr": st.floats(1e-12, 10),
        "policy.model_name": text,
        "logger.wandb.name": st.none() | text,
        "loss_fn.aggregation": st.sampled_from(["token_mean", "seq_mean_token_sum_norm"]),
        "loss_fn.importance_sampling_correction_type": st.sampled_from(["token", "tis", "icepop", "seq-mask-tis"]),
        "policy.generation.stop_strings": st.none() | st.lists(text, max_size=3),
        "data.train.kwargs": st.dictionaries(st.text("abc.: \n", min_size=1), st.none() | st.floats(allow_nan=False) | text),
        "data.train.prompt_template": st.none() | text,
        "policy.max_total_sequence_length": st.integers(8, 1000),
    },
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(overrides)
def test_any_configuration_survives_being_written(write, values):
    from grpo.config.yaml_format import dump

    tree = {"defaults": "tiny"}
    for key, value in values.items():
        *way, last = key.split(".")
        branch = tree
        for name in way:
            branch = branch.setdefault(name, {})
        branch[last] = value
    resolved = load_config(write(dump(tree), "first.yaml"))
    assert load_config(write(resolved.to_yaml(), "second.yaml")).config == resolved.config


def test_set_by_has_one_line_a_key():
    lines = load_config("tiny", ["grpo.seed=7"]).to_set_by().splitlines()
    split = dict(line.split("  # ") for line in lines)
    stripped = {key.rstrip(): origin for key, origin in split.items()}
    assert stripped["grpo.seed=7"] == "override"
    assert stripped["policy.precision=float32"].startswith("grpo/recipes/tiny.yaml:")
    assert stripped["policy.optimizer.kwargs.betas=[0.9, 0.95]"].startswith("grpo/recipes/tiny.yaml:")
    assert stripped["env.exact_match.kwargs={}"] == "default"
    assert stripped["policy.tokenizer.name=tiny-digits"] == "derived from policy.model_name"
