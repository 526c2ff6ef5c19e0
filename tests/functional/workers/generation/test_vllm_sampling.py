"""The tap on the runner that vLLM has for GPUs, on a pretended one: which row and place a sampled token belongs to."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo.workers.generation import vllm_sampling
from grpo.workers.generation.sampled_logprobs import SampledLogprobs

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("vllm")]
SLOTS, VOCABULARY = 5, 13


def log_softmax_at(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.double().log_softmax(-1).gather(1, tokens).float()


class Sampler:
    def add_request(self, req_idx: int, prompt_len: int, sampling_params: Any) -> None:
        """As in 0.25; 0.32 has no prompt_len."""

    def sample(self, logits: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return logits.argmax(-1), logits * 0.5


class Runner:
    max_num_reqs = SLOTS
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.sampler = Sampler()
        self.req_states = SimpleNamespace(prompt_len=SimpleNamespace(np=np.zeros(SLOTS, dtype=np.int32)))

    def sample(self, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        return self.sampler.sample(hidden_states), grammar_output


Runner.__module__ = vllm_sampling._V2_MODULE


class Engine:
    """Steps are given as (slot, tokens computed before, tokens of the step, tokens that are not sampled)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vllm.v1.worker.gpu.sample.logprob.compute_token_logprobs", log_softmax_at)
        self.runner = Runner()
        self.recorder = vllm_sampling._tap_worker(SimpleNamespace(model_runner=self.runner)).recorder

    def add(self, slot: int, row: int | None, prompt: int) -> None:
        self.runner.req_states.prompt_len.np[slot] = prompt
        extra = {} if row is None else {vllm_sampling.ROW: row}
        self.runner.sampler.add_request(slot, prompt, SimpleNamespace(extra_args=extra))

    def step(self, *entries: tuple[int, int, int, int]) -> tuple[list[int], list[float]]:
        slots, computed, scheduled, known = (np.array(each, dtype=np.int32) for each in zip(*entries, strict=True))
        logits = torch.randn(len(entries), VOCABULARY)
        batch = SimpleNamespace(
            idx_mapping_np=slots, num_computed_tokens_np=computed, num_scheduled_tokens=scheduled, prefill_len_np=known
        )
        (tokens, _), rest = self.runner.sample(logits, batch, "grammar")
        assert rest == "grammar"
        return tokens.tolist(), log_softmax_at(logits * 0.5, tokens[:, None])[:, 0].tolist()


@pytest.fixture
def engine(monkeypatch) -> Engine:
    return Engine(monkeypatch)


def test_chunks_of_prompts_sample_in_vain_and_batches_come_in_any_order(engine: Engine) -> None:
    recorder: SampledLogprobs = engine.recorder
    long, short = recorder.reserve(2, 9)
    engine.add(3, long, 10)
    engine.add(1, short, 2)
    first = engine.step((1, 0, 2, 2), (3, 0, 4, 10))
    second = engine.step((3, 4, 6, 10), (1, 2, 1, 2))
    third = engine.step((3, 10, 1, 10), (1, 3, 1, 2))
    assert recorder.read(short, [first[0][0], second[0][1], third[0][1]]) == [first[1][0], second[1][1], third[1][1]]
    assert recorder.read(long, [second[0][0], third[0][0]]) == [second[1][0], third[1][0]]


def test_a_preempted_request_goes_on_in_another_slot_and_keeps_what_it_had(engine: Engine) -> None:
    """What it computes again in chunks is not sampled again, however far the chunk reaches into its completion."""
    recorder = engine.recorder
    (row,) = recorder.reserve(1, 9)
    engine.add(0, row, 3)
    steps = [engine.step((0, 0, 3, 3)), engine.step((0, 3, 1, 3)), engine.step((0, 4, 1, 3))]
    engine.add(4, row, 3)  # known: the prompt and three tokens
    engine.step((4, 0, 4, 6))
    engine.step((4, 4, 1, 6))
    steps += [engine.step((4, 5, 1, 6)), engine.step((4, 6, 1, 6))]
    assert recorder.read(row, [tokens[0] for tokens, _ in steps]) == [logprobs[0] for _, logprobs in steps]


def test_a_token_sampled_again_after_it_was_dropped_counts(engine: Engine) -> None:
    recorder = engine.recorder
    (row,) = recorder.reserve(1, 9)
    engine.add(0, row, 3)
    first, _ = engine.step((0, 0, 3, 3)), engine.step((0, 3, 1, 3))
    engine.add(0, row, 3)
    again = engine.step((0, 0, 4, 4))
    assert recorder.read(row, [first[0][0], again[0][0]]) == [first[1][0], again[1][0]]


def test_requests_that_name_no_row_are_not_recorded(engine: Engine, monkeypatch) -> None:
    recorder = engine.recorder
    monkeypatch.setattr(recorder, "record", lambda *_: pytest.fail("nothing is to be recorded"))
    engine.add(2, None, 3)
    engine.step((2, 0, 3, 3))


def test_a_slot_used_again_is_the_new_requests(engine: Engine) -> None:
    recorder = engine.recorder
    old, new = recorder.reserve(2, 9)
    engine.add(2, old, 3)
    first = engine.step((2, 0, 3, 3))
    engine.add(2, new, 1)
    second = engine.step((2, 0, 1, 1))
    assert recorder.read(old, first[0]) == first[1]
    assert recorder.read(new, second[0]) == second[1]


def test_the_installed_releases_own_runner_and_sampler_are_tapped(monkeypatch) -> None:
    """Their code, from a request that is added to the tokens of a step; only kernels that need a GPU are replaced."""
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.sample import sampler as sampling

    monkeypatch.setattr("vllm.v1.worker.gpu.sample.logprob.compute_token_logprobs", log_softmax_at)
    monkeypatch.setattr(sampling, "gumbel_sample", lambda logits, *_, **__: logits.argmax(-1))
    monkeypatch.setattr(sampling, "get_num_sampled_and_rejected", lambda ones, *_: (ones, ones - ones))
    sampler = sampling.Sampler.__new__(sampling.Sampler)
    vars(sampler).update(
        sampling_states=SimpleNamespace(
            add_request=lambda *_: False, max_num_logprobs=lambda _: sampling.NO_LOGPROBS,
            get_top_k_top_p=lambda *_: (None, None), any_greedy=lambda _: False, any_explicit_seed=lambda _: True,
            temperature=SimpleNamespace(gpu=None), seeds=SimpleNamespace(gpu=None),
        ),
        thinking_budget_state=SimpleNamespace(add_request=lambda *_: False),
        logprob_token_ids_state=SimpleNamespace(max_num_token_ids=lambda _: 0, add_request=lambda *_: None),
        req_states=SimpleNamespace(prefill_len=SimpleNamespace(gpu=None)), logits_processors=[],
        needs_logits_processing=np.zeros(SLOTS, dtype=bool), trace_replay_state=None, compute_nans=False,
        use_flashinfer=False, use_xpu_sampler=False, use_fp64_gumbel=False, return_sampling_mask=False,
        logprobs_mode="processed_logprobs",
    )  # fmt: skip
    runner = model_runner.GPUModelRunner.__new__(model_runner.GPUModelRunner)
    prompts = SimpleNamespace(np=np.array([0, 3, 0, 2, 0], dtype=np.int32))
    vars(runner).update(
        sampler=sampler, model=SimpleNamespace(compute_logits=lambda hidden: hidden), rejection_sampler=None,
        batch_sharder=None, max_num_reqs=SLOTS, device=torch.device("cpu"),
        req_states=SimpleNamespace(prompt_len=prompts),
    )  # fmt: skip
    recorder = vllm_sampling._tap_worker(SimpleNamespace(model_runner=runner)).recorder
    rows = recorder.reserve(2, 9)
    for slot, row in zip((3, 1), rows, strict=True):
        sampler.add_request(slot, SimpleNamespace(extra_args={vllm_sampling.ROW: row}))
    expected: list[list[float]] = [[], []]
    sampled: list[list[int]] = [[], []]
    for computed, scheduled in (((0, 0), (2, 2)), ((2, 2), (1, 1)), ((3, 3), (1, 1))):
        count, logits = 2, torch.randn(2, VOCABULARY)
        batch = SimpleNamespace(
            idx_mapping=torch.tensor([3, 1]), idx_mapping_np=np.array([3, 1]), expanded_idx_mapping=None,
            expanded_local_pos=None, cu_num_logits=None, cu_num_logits_np=np.array([0, 1, 2]), num_reqs=count,
            num_draft_tokens=0, positions=torch.zeros(count), input_ids=torch.zeros(count),
            logits_indices=torch.arange(count), seq_lens=torch.zeros(count, dtype=torch.int32),
            seq_lens_cpu_upper_bound=torch.zeros(count), num_computed_tokens_np=np.array(computed),
            num_scheduled_tokens=np.array(scheduled), prefill_len_np=np.array([2, 3]),
        )  # fmt: skip
        output, _, _ = runner.sample(logits, batch, None)
        tokens = output.sampled_token_ids[:, 0]
        for number, value in enumerate(log_softmax_at(logits, tokens[:, None])[:, 0].tolist()):
            if computed[number] + scheduled[number] >= (2, 3)[number]:
                sampled[number].append(int(tokens[number]))
                expected[number].append(value)
    assert [len(each) for each in sampled] == [3, 2]
    assert [recorder.read(row, tokens) for row, tokens in zip(rows, sampled, strict=True)] == expected
    runner.batch_sharder = object()
    with pytest.raises(vllm_sampling._UnknownRunnerError, match="samples some"):
        vllm_sampling._tap_worker(SimpleNamespace(model_runner=runner))


@pytest.mark.parametrize("gone", ["sampler", "req_states", "max_num_reqs"])
def test_a_runner_without_a_part_is_named(gone: str, monkeypatch) -> None:
    runner = Runner()
    vars(runner).pop(gone, None)
    monkeypatch.delattr(Runner, gone, raising=False)
    with pytest.raises(vllm_sampling._UnknownRunnerError, match=f"no {gone}"):
        vllm_sampling._tap_worker(SimpleNamespace(model_runner=runner))
