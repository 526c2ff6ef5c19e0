"""A decoder against the forward of transformers, without any cache."""

from typing import Any

import torch

from grpo.workers.generation.decoder import Decoder


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    rows = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    return torch.tensor(rows), torch.tensor([len(prompt) for prompt in prompts])


@torch.no_grad()
def check_against_forward(decoder: Decoder, model: Any, prompts: list[list[int]], tolerance: float = 1e-5) -> None:
    """Prefill, fan out to 2 or 3 rows a prompt, 6 steps, with rows dropped on the way; logits at every point."""

    def expect(logits: torch.Tensor, sequences: list[list[int]]) -> None:
        for row, sequence in zip(logits, sequences, strict=True):
            expected = model(input_ids=torch.tensor([sequence])).logits[0, -1]
            scale = expected.abs().max()
            torch.testing.assert_close(row / scale, expected / scale, atol=tolerance, rtol=0)

    expect(decoder.prefill(*padded(prompts)), prompts)
    rows = [0, 0, *range(len(prompts)), len(prompts) - 1]
    decoder.fan_out(torch.tensor(rows), 6)
    sequences = [list(prompts[row]) for row in rows]
    for step in range(6):
        if step == 3:
            kept = [1, len(rows) - 1]
            decoder.keep(torch.tensor(kept))
            sequences = [sequences[row] for row in kept]
        tokens = [(31 * step + 17 * row + 3) % model.config.vocab_size for row in range(len(sequences))]
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
        expect(decoder.step(torch.tensor(tokens)), sequences)
    decoder.clear()
