import dataclasses

import pytest

from grpo.algorithm.objective import ObjectiveOptions
from grpo.batching.micro_batches import Dynamic, Packed, Static
from grpo.workers.policy.options import needs_reference, objective_options, planning
from tests.support.policy import tiny_config

KEYS = [
    ("kind", "cispo", "kind"),
    ("ratio_clip_min", 0.11, "ratio_clip_min"),
    ("ratio_clip_max", 0.31, "ratio_clip_max"),
    ("ratio_clip_c", 3.5, "ratio_clip_c"),
    ("force_on_policy_ratio", True, "force_on_policy_ratio"),
    ("aggregation", "seq_mean_token_sum", "aggregation"),
    ("aggregation_norm_length", 77, "aggregation_norm_length"),
    ("entropy_coef", 0.4, "entropy_coef"),
    ("reference_policy_kl_penalty", 0.7, "kl_penalty"),
    ("reference_policy_kl_type", "k2", "kl_kind"),
    ("kl_on_policy_gradient", False, "kl_on_policy_gradient"),
    ("kl_input_clamp_value", 5.0, "kl_input_clamp"),
    ("kl_output_clamp_value", 6.0, "kl_output_clamp"),
    ("use_importance_sampling_correction", True, "use_correction"),
    ("importance_sampling_correction_type", "mis", "correction_kind"),
    ("truncated_importance_sampling_ratio", 3.0, "correction_cap"),
    ("importance_sampling_ratio_min", 0.3, "correction_min"),
    ("importance_sampling_ratio_max", 4.0, "correction_max"),
]


@pytest.mark.parametrize(("key", "value", "option"), KEYS)
def test_each_key_reaches_its_option_alone(key, value, option):
    plain = dataclasses.asdict(objective_options(tiny_config()))
    changed = dataclasses.asdict(objective_options(tiny_config(loss_fn={key: value})))
    assert changed[option] == value != plain[option]
    assert {name for name in plain if plain[name] != changed[name]} == {option}


def test_kl_in_the_reward_is_not_in_the_loss():
    assert objective_options(tiny_config()).kl_in_loss
    assert not objective_options(tiny_config(loss_fn={"reference_policy_kl_in": "reward"})).kl_in_loss


def test_every_option_has_its_key():
    assert {field.name for field in dataclasses.fields(ObjectiveOptions)} == {row[2] for row in KEYS} | {"kl_in_loss"}


@pytest.mark.parametrize(("penalty", "needed"), [(0.0, False), (1e-9, True)])
def test_a_kl_penalty_needs_a_reference(penalty, needed):
    assert needs_reference(tiny_config(loss_fn={"reference_policy_kl_penalty": penalty})) == needed


@pytest.mark.parametrize(
    ("policy", "training", "logprob"),
    [
        ({"train_micro_batch_size": 3, "logprob_batch_size": 5}, Static(3), Static(5)),
        (
            {"train_micro_batch_size": 3, "logprob_batch_size": 5, "make_sequence_length_divisible_by": 8},
            Static(3, 8),
            Static(5, 8),
        ),
        (
            {"train_micro_batch_size": 3, "logprob_batch_size": 5, "dynamic_batching": {"enabled": True}},
            Dynamic(192, 64),
            Dynamic(320, 64),
        ),
        (
            {
                "dynamic_batching": {
                    "enabled": True, "train_mb_tokens": 70, "logprob_mb_tokens": 90, "sequence_length_round": 8,
                }
            },
            Dynamic(70, 8),
            Dynamic(90, 8),
        ),
        (
            {"max_total_sequence_length": 70, "train_micro_batch_size": 1, "dynamic_batching": {"enabled": True}},
            Dynamic(128, 64),
            Dynamic(280, 64),
        ),
        (
            {"sequence_packing": {"enabled": True, "train_mb_tokens": 70, "algorithm": "balanced"}},
            Packed(70, "balanced"),
            Packed(256, "balanced"),
        ),
        *(
            (
                {
                    "sequence_packing": {"enabled": True, "train_mb_tokens": 70}, **backend,
                    "make_sequence_length_divisible_by": 6,
                },
                Packed(64, round_to=12),  # not 70, which a row of 70 tokens would exceed once it is widened
                Packed(252, round_to=12),
            )
            for backend in (
                {"dtensor_cfg": {"tensor_parallel_size": 4, "sequence_parallel": True}},
                {
                    "dtensor_cfg": {"enabled": False},
                    "megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 4, "sequence_parallel": True},
                },
            )
        ),
    ],
)  # fmt: skip
def test_how_a_batch_is_cut(policy, training, logprob):
    config = tiny_config(policy=policy).policy
    assert planning(config, training=True) == training
    assert planning(config, training=False) == logprob
