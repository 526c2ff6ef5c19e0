"""The decode loop with a model whose next token is known."""

import pytest
import torch
from torch import Tensor

from grpo.errors import GenerationError
from grpo.workers.generation.decoding import Job, decode
from grpo.workers.protocol import SamplingParams

CPU = torch.device("cpu")
VOCABULARY = 40


class Counting:
    """The token after n is n + 1, almost surely. Records the rows of every step."""

    def __init__(self, scale: float = 50.0):
        self.scale = scale
        self.steps: list[int] = []
        self.prefilled: list[list[int]] = []
        self.fanned_out: list[int] = []
        self.new_tokens = 0

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        self.prefilled = tokens.tolist()
        return self._next(tokens[:, -1])

    def fan_out(self, rows: Tensor, new_tokens: int) -> None:
        self.fanned_out, self.new_tokens = rows.tolist(), new_tokens
        self.rows = len(rows)

    def step(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == self.rows
        self.steps.append(len(tokens))
        return self._next(tokens)

    def keep(self, rows: Tensor) -> None:
        self.rows = len(rows)

    def clear(self) -> None:
        self.rows = 0

    def _next(self, tokens: Tensor) -> Tensor:
        return self.scale * torch.nn.functional.one_hot((tokens + 1) % VOCABULARY, VOCABULARY).float()


def job(prompts: list[list[int]], completions: int = 2, limits: list[int] | None = None, new_tokens: int = 8) -> Job:
    return Job(
        indices=list(range(len(prompts))), prompts=prompts, seeds=list(range(len(prompts))),
        limits=[[limit] * completions for limit in limits or [new_tokens] * len(prompts)],
        num_completions=completions, first=0, count=completions,
    )  # fmt: skip


def run(model: Counting, work: Job, **sampling):
    sampled = decode(
        model, work, SamplingParams(**{"max_new_tokens": max(map(max, work.limits))} | sampling), CPU, None
    )
    return [sampled.completion(row) for row in range(len(work.prompts) * work.count)]


def test_logprobs_belong_to_their_own_tokens():
    """A model that is certain of n + 1: every log-prob is about 0; shifted by one they would be about -50."""
    for tokens, logprobs, reason in run(Counting(), job([[3, 4], [9]])):
        assert tokens == list(range(tokens[0], tokens[0] + 8))
        assert logprobs == pytest.approx([0.0] * 8, abs=1e-6)
        assert reason == "length"


def test_one_prefill_a_prompt_one_step_a_token():
    model = Counting()
    run(model, job([[1, 2, 3], [7]], completions=3))
    assert model.prefilled == [[1, 2, 3], [0, 0, 7]]
    assert model.fanned_out == [0, 0, 0, 1, 1, 1]
    assert model.new_tokens == 7
    assert model.steps == [6] * 7


def test_one_token_needs_no_step():
    model = Counting()
    assert [tokens for tokens, _, _ in run(model, job([[5]], completions=1, new_tokens=1))] == [[6]]
    assert model.steps == model.fanned_out == []


def test_rows_are_dropped_when_half_have_ended_and_the_loop_ends_with_the_last():
    model = Counting()
    results = run(model, job([[16], [18], [12]], completions=1, new_tokens=15), stop_token_ids=(20,))
    assert [tokens for tokens, _, _ in results] == [[17, 18, 19, 20], [19, 20], list(range(13, 21))]
    assert {reason for _, _, reason in results} == {"stop"}
    assert model.steps == [3, 3, 3, 1, 1, 1, 1]


def test_each_prompt_has_its_own_limit():
    model = Counting()
    results = run(model, job([[1], [5], [30]], completions=1, limits=[2, 7, 4]), stop_token_ids=(34, 8))
    assert [(tokens, reason) for tokens, _, reason in results] == [
        ([2, 3], "length"), ([6, 7, 8], "stop"), ([31, 32, 33, 34], "stop"),
    ]  # fmt: skip
    assert len(model.steps) == 3


def test_stops_do_not_count_before_min_new_tokens():
    """The stop tokens are forbidden for two tokens, so the model is never at one; then the certain ones go on."""
    model = Counting(scale=4.0)
    for tokens, _, _ in run(model, job([[1]], completions=40, new_tokens=6), stop_token_ids=(2, 3), min_new_tokens=2):
        assert not {2, 3} & set(tokens[:2])
        assert not {2, 3} & set(tokens[:-1])


def test_pinned_lengths_never_look_for_the_end(monkeypatch):
    model = Counting()
    work = job([[1]], completions=4, new_tokens=5)
    results = run(model, work, stop_token_ids=(3,), min_new_tokens=5)
    assert {len(tokens) for tokens, _, _ in results} == {5}
    assert model.steps == [4] * 4


def test_nan_is_an_error():
    with pytest.raises(GenerationError, match="not finite"):
        run(Counting(scale=float("nan")), job([[1]]))
