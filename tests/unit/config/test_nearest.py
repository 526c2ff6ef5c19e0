import pytest

from grpo.config.nearest import did_you_mean, valid_keys


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("policy.max_grad_nrm", "; did you mean policy.max_grad_norm?"),
        ("policy.tensor_parallel_size",
         "; did you mean policy.dtensor_cfg.tensor_parallel_size or policy.generation.vllm_cfg.tensor_parallel_size?"),
        ("env.mine.timeouts", "; did you mean env.mine.timeout_s?"),
        ("quite.zzz", ""),
        ("policy.zzz", ""),
    ],
)  # fmt: skip
def test_the_nearest_key(word, expected):
    assert did_you_mean(word, valid_keys(word)) == expected


def test_nothing_is_near_nothing():
    assert did_you_mean("a", []) == ""
