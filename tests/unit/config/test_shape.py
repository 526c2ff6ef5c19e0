import pytest

from grpo.config.schema import Config
from grpo.config.shape import at, describe, narrow


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("grpo.seed", "a whole number at least 0"),
        ("loss_fn.ratio_clip_min", "a number at least 0 and below 1"),
        ("loss_fn.ratio_clip_c", "a number above 1, or null"),
        ("policy.precision", "one of float32, bfloat16"),
        ("policy.optimizer.name", "torch.optim.AdamW"),
        ("policy.generation.stop_strings", "a list of texts, or null"),
        ("policy", "a mapping"),
        ("env.any.kwargs", "a mapping"),
        ("env.any.kwargs.deep.key", "anything"),
        ("data.validation", "a mapping with `kind`: one of file, hub, reasoning_gym, function, or null"),
    ],
)
def test_what_is_valid_at_a_key(key, words):
    assert describe(at(Config, key)) == words


def test_keys_of_every_kind_are_found_and_of_one_when_narrowed():
    assert at(Config, "data.train.task") is not None
    assert at(Config, "data.train.nothing") is None
    assert [s.__name__ for s in narrow(at(Config, "data.train"), "file").sections] == ["FileDataset"]
