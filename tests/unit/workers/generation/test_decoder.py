"""The decoder that goes through transformers' own forward and cache."""

import pytest
import torch
from transformers import GPT2Config

from grpo.models.loading import load_model
from grpo.workers.generation.decoder import TransformersDecoder
from tests.support.decoder_check import check_against_forward
from tests.support.generation import Family, write_model

PROMPTS = [[7, 3, 25, 9, 12], [11], [5, 6, 7, 8, 9, 10, 11, 12, 13]]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_equals_the_plain_forward(tmp_path, family: Family):
    model = load_model(write_model(tmp_path, family), dtype=torch.float32)
    check_against_forward(TransformersDecoder(model), model, PROMPTS)


def test_learned_positions_count_from_the_first_token_of_each_prompt(tmp_path):
    GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3).save_pretrained(
        tmp_path
    )
    model = load_model(tmp_path, dtype=torch.float32, random_weights=True)
    check_against_forward(TransformersDecoder(model), model, PROMPTS)
