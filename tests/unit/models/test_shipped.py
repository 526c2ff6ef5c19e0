import pytest
import torch

from grpo.models.loading import load_model, load_tokenizer
from grpo.models.shipped import materialise, shipped_folder, shipped_names


def test_an_unknown_name_has_no_folder():
    assert shipped_folder("nothing") is None


@pytest.mark.parametrize("name", shipped_names())
def test_a_written_folder_loads_with_the_weights_that_random_weights_gives(name, tmp_path):
    folder = materialise(name, tmp_path / "model", seed=3)
    written = load_model(folder, dtype=torch.float32)
    drawn = load_model(shipped_folder(name), dtype=torch.float32, random_weights=True, seed=3)
    other = load_model(shipped_folder(name), dtype=torch.float32, random_weights=True, seed=4)
    assert all(torch.equal(*pair) for pair in zip(written.parameters(), drawn.parameters(), strict=True))
    assert not torch.equal(next(drawn.parameters()), next(other.parameters()))
    tokenizer = load_tokenizer(folder, vocabulary=written.config.vocab_size)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("name", "text"), [("tiny-digits", "3,7,2,5="), ("tiny-letters", "abc>"), ("tiny-llama", "Aé ?")]
)
def test_tokenizers_give_back_what_they_were_given(name, text):
    tokenizer = load_tokenizer(shipped_folder(name))
    assert tokenizer.decode(tokenizer(text).input_ids) == text
