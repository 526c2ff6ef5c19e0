"""The short way through vLLM's scheduler and the record of log-probs, against vLLM's own way, on one small engine.

Its KV cache is too small for what is asked, its steps too short for a prompt, so that requests are preempted, computed
again and cut into chunks.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo.models.loading import load_model
from grpo.workers.generation import vllm_sampling, vllm_steps
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_arguments import engine_arguments
from grpo.workers.protocol import Completion, SamplingParams
from tests.support.generation import VOCABULARY, make_config, reference_logits, reference_logprobs, write_model
from tests.support.generator_contract import FLOAT32, flat, plain

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]
BLOCK, BLOCKS = 32, 26
PROMPTS = [[7, 7, 7], [(11 * place) % 250 for place in range(70)], [5], [(3 * place) % 250 for place in range(33)]]
SEEDS = [1, 2, 3, 4]
STOPS = tuple(range(0, VOCABULARY, 30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), seed=1)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmGenerator]:
    config = make_config(folder, backend="vllm")
    bytes_a_token = 2 * 2 * 2 * 32 * 4  # keys and values of 2 layers, 2 heads of 32 float32 numbers
    small = {
        "block_size": BLOCK, "kv_cache_memory_bytes": BLOCKS * BLOCK * bytes_a_token, "max_num_batched_tokens": 48,
        "max_num_seqs": 16,
    }  # fmt: skip
    engine = VllmGenerator(config, folder, engine_arguments(config, folder) | small)
    assert engine.recorded
    assert engine.short_steps
    yield engine
    engine.shutdown()


@pytest.fixture
def preemptions(engine: VllmGenerator, monkeypatch) -> list[str]:
    scheduler = engine.engine.llm_engine.engine_core.engine_core.scheduler
    seen, preempt = [], scheduler._preempt_request
    monkeypatch.setattr(
        scheduler, "_preempt_request", lambda *each, **more: (seen.append(each), preempt(*each, **more))
    )
    return seen


def vllms_own(engine: VllmGenerator, stack: ExitStack) -> None:
    vllm_steps.undo(engine.engine)
    stack.callback(vllm_steps.shorten, engine.engine)
    stack.enter_context(engine.own_logprobs())


@pytest.mark.parametrize(
    "sampling",
    [
        plain(80),
        plain(80, temperature=0.6, top_p=0.8, stop_token_ids=STOPS),
        plain(80, temperature=1.4, top_k=7),
        plain(80, temperature=0.0, stop_token_ids=STOPS),
    ],
)
def test_completions_are_vllms_own(engine, preemptions, sampling):
    stops = sampling.stop_token_ids
    mine = engine.generate(PROMPTS, 5, sampling, SEEDS)
    assert preemptions or stops, "the cache is too large: nothing was preempted"
    with ExitStack() as stack:
        vllms_own(engine, stack)
        own = engine.generate(PROMPTS, 5, sampling, SEEDS)
    lengths = set()
    for first, second in zip(flat(mine), flat(own), strict=True):
        assert first.token_ids == second.token_ids
        assert first.finish_reason == second.finish_reason
        torch.testing.assert_close(first.logprobs, second.logprobs, atol=2e-5, rtol=0)  # computed again, or not
        lengths.add(len(first.token_ids))
    assert lengths == {80} if not stops else len(lengths) > 3


def test_without_preemption_log_probs_are_bit_for_bit_vllms_own(engine, preemptions):
    for temperature, top_p, top_k in ((1.0, 1.0, None), (0.5, 0.9, 20), (0.0, 1.0, None)):
        sampling = plain(9, temperature=temperature, top_p=top_p, top_k=top_k, min_new_tokens=2, stop_token_ids=STOPS)
        mine = engine.generate(PROMPTS, 3, sampling, SEEDS)
        with engine.own_logprobs():
            assert engine.generate(PROMPTS, 3, sampling, SEEDS) == mine
    assert not preemptions


def test_log_probs_of_greedy_and_sampled_requests_in_one_batch(engine, folder):
    model = load_model(folder, dtype=torch.float32)
    kinds = [plain(12, temperature=0.0), plain(12, temperature=0.7), plain(5), plain(12, temperature=0.0)]
    rows = [engine.reserve(1, kind)[0] for kind in kinds]
    outputs = engine.engine.generate(
        [{"prompt_token_ids": prompt} for prompt in PROMPTS],
        [engine.request_parameters(kind, seed, row) for kind, seed, row in zip(kinds, SEEDS, rows, strict=True)],
        use_tqdm=False,
    )
    for prompt, kind, row, output in zip(PROMPTS, kinds, rows, outputs, strict=True):
        found = engine.completion(output.outputs[0], row, 0)
        expected = reference_logprobs(model, prompt, found.token_ids, kind.temperature or 1.0)
        torch.testing.assert_close(torch.tensor(found.logprobs).double(), expected, atol=FLOAT32, rtol=0)
    engine.release(rows)


def test_requests_given_up_leave_nothing_behind(engine):
    """Aborted in mid-flight, their rows are used again at once."""
    sampling = plain(30)
    expected = engine.generate(PROMPTS, 2, sampling, SEEDS)
    rows = engine.reserve(3, sampling)
    for number, row in enumerate(rows):
        engine.engine.llm_engine.add_request(
            f"given up {number}",
            {"prompt_token_ids": PROMPTS[number]},
            engine.request_parameters(sampling, number, row),
        )
    for _ in range(6):
        engine.engine.llm_engine.step()
    engine.engine.llm_engine.abort_request([f"given up {number}" for number in range(3)])
    engine.release(rows)
    assert engine.generate(PROMPTS, 2, sampling, SEEDS) == expected


def test_an_engine_that_is_built_otherwise_is_not_tapped(engine, monkeypatch, caplog):
    class Runner:
        pass

    class Worker:
        model_runner = Runner()

    class Engine:
        def collective_rpc(self, function: Any) -> list[Any]:
            return [function(Worker())]

    assert vllm_sampling.tap(Engine(), lambda *_: []) is None
    (line,) = caplog.records
    assert "slow: its model runner is a tests.functional.workers.generation.test_vllm_steps.Runner" in line.getMessage()


def test_recorded_values_that_differ_are_not_used(engine, monkeypatch, caplog):
    def other(found: Any, generate: Any) -> float:
        return 2e-6

    monkeypatch.setattr(vllm_sampling, "_difference", other)
    sampler = engine.engine.collective_rpc(lambda worker: worker.model_runner.sampler)[0]
    before = sampler.sample
    assert vllm_sampling.tap(engine.engine, lambda *_: []) is None
    sampler.sample = before
    assert "recorded ones differ by 2e-06" in caplog.text


def test_a_scheduler_that_counts_something_new_is_left_alone(engine, caplog):
    from vllm.v1.core.sched.scheduler import Scheduler

    class Newer(Scheduler):
        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            self.energy = 1
            return super().update_from_output(scheduler_output, model_runner_output)

    Newer.__module__ = "vllm.v1.core.sched.newer"
    newer = object.__new__(Newer)
    vars(newer).update(vars(engine.engine.llm_engine.engine_core.engine_core.scheduler))
    assert not vllm_steps.shorten_scheduler(newer, engine.engine.llm_engine.vllm_config)
    assert "slow: its scheduler counts energy" in caplog.text


class Pretend:
    """A scheduler with a model whose token is a function of request and place; steps overlap as on a GPU."""

    def __init__(self, engine: VllmGenerator, kind: type, *, short: bool, depth: int) -> None:
        core = engine.engine.llm_engine.engine_core.engine_core
        self.engine, self.core, self.depth = engine, core, depth
        self.config = engine.engine.llm_engine.vllm_config
        self.scheduler = kind(
            vllm_config=self.config, kv_cache_config=core.scheduler.kv_cache_config, block_size=BLOCK,
            structured_output_manager=core.structured_output_manager, hash_block_size=BLOCK,
        )  # fmt: skip
        self.preempted = 0
        preempt = self.scheduler._preempt_request

        def counted(*each: Any, **more: Any) -> None:
            self.preempted += 1
            preempt(*each, **more)

        self.scheduler._preempt_request = counted
        if short:
            assert vllm_steps.shorten_scheduler(self.scheduler, self.config)
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.steps: list[tuple[Any, ...]] = []
        self.outputs = 0

    def add(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        from vllm.v1.request import Request

        self.scheduler.add_request(
            Request(
                request_id=name, prompt_token_ids=prompt, pooling_params=None,
                sampling_params=self.engine.request_parameters(sampling, 1, 0),
                block_hasher=self.core.request_block_hasher,
            )
        )  # fmt: skip

    def run(self, abort: dict[int, str]) -> None:
        under_way: deque[Any] = deque()
        for number in range(2000):
            if number in abort:
                from vllm.v1.request import RequestStatus

                self.scheduler.finish_requests(abort[number], RequestStatus.FINISHED_ABORTED)
            if self.scheduler.has_requests() and len(under_way) < self.depth:
                step = self.scheduler.schedule()
                self.steps.append(tuple(sorted(step.num_scheduled_tokens.items())))
                under_way.append((step, self.sample(step)))
                if len(under_way) < self.depth and step.total_num_scheduled_tokens:
                    continue
            if not under_way:
                break
            self.take(*under_way.popleft())
        assert not self.scheduler.requests

    def sample(self, step: Any) -> list[list[int]]:
        found = []
        for name in step.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            place = request.num_computed_tokens
            found.append([] if request.is_prefill_chunk else [(hash_of(name) * 31 + place * 17) % VOCABULARY])
        return found

    def take(self, step: Any, sampled: list[list[int]]) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=sampled
        )
        for outputs in self.scheduler.update_from_output(step, output).values():
            for each in outputs.outputs:
                self.outputs += 1
                self.tokens.setdefault(each.request_id, []).extend(each.new_token_ids)
                if each.finish_reason is not None:
                    self.reasons[each.request_id] = str(each.finish_reason)


def hash_of(name: str) -> int:
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(name))


@pytest.mark.parametrize("depth", [1, 2])
def test_schedules_are_vllms_own_also_where_a_step_is_planned_ahead(engine, depth):
    """Prompts of several lengths, several lengths of completion, stop tokens, preemption, requests given up."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    sides = [
        Pretend(engine, AsyncScheduler if depth == 2 else Scheduler, short=short, depth=depth)
        for short in (False, True)
    ]
    for side in sides:
        for number in range(24):
            sampling = plain(20 + 9 * (number % 7), stop_token_ids=STOPS[:2] if number % 3 == 0 else ())
            side.add(f"request {number}", PROMPTS[number % 4] + [number] * (number // 3), sampling)
        side.run({30: "request 5", 31: "request 20", 55: "request 9"})
    plainly, shortly = sides
    assert plainly.preempted > 2
    assert shortly.reasons == plainly.reasons
    assert 21 <= len(plainly.reasons) < 24  # those given up deliver what has gone out, which nobody reads
    for name in plainly.reasons:
        assert shortly.tokens[name] == plainly.tokens[name], name
    assert shortly.steps == plainly.steps
    assert shortly.outputs < plainly.outputs / 4


def test_a_stream_knows_the_tokens_of_running_requests(engine):
    sampling = plain(30)
    rows = engine.reserve(2, sampling)
    for number, row in enumerate(rows):
        engine.engine.llm_engine.add_request(
            f"counted {number}", {"prompt_token_ids": [number]}, engine.request_parameters(sampling, number, row)
        )
    for _ in range(7):
        engine.engine.llm_engine.step()
    assert vllm_steps.tokens_so_far(engine.engine) == {"counted 0": 7, "counted 1": 7}
    finished: list[Completion] = []
    while engine.engine.llm_engine.has_unfinished_requests():
        finished += engine.engine.llm_engine.step()
    assert [len(each.outputs[0].token_ids) for each in finished] == [30, 30]
    engine.release(rows)


def test_noise_is_of_seed_and_place_alone(engine, folder):
    """Frequencies of tokens and of pairs of neighbours against the model's probabilities, each from its own seeds."""
    model = load_model(folder, dtype=torch.float32)
    count = 1500
    results = flat(engine.generate([PROMPTS[0]], count, plain(2, top_k=4), [9]))
    first = reference_logits(model, PROMPTS[0], [0])[0]
    kept = first.topk(4)
    pairs: dict[tuple[int, ...], float] = {}
    for token, logprob in zip(kept.indices.tolist(), kept.values.log_softmax(0).tolist(), strict=True):
        second = reference_logits(model, [*PROMPTS[0], token], [0])[0].topk(4)
        for other, more in zip(second.indices.tolist(), second.values.log_softmax(0).tolist(), strict=True):
            pairs[token, other] = math.exp(logprob + more)
    found = Counter(tuple(each.token_ids) for each in results)
    assert set(found) <= set(pairs)
    distance = sum(
        (found[pair] - count * share) ** 2 / (count * share) for pair, share in pairs.items() if share > 1e-3
    )
    assert distance < 45  # chi squared of 15 degrees: 1 in 10,000


def test_seeds_of_places_fill_all_bits():
    seeds, places = np.arange(4096) % 64, np.arange(4096) // 64
    found = vllm_sampling.noise_seeds(seeds.astype(np.int64), places.astype(np.int64)).view(np.uint64)
    assert len(set(found.tolist())) == 4096
    bits = (found[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert abs(bits.mean(0) - 0.5).max() < 0.04
    large = vllm_sampling.noise_seeds(np.array([5, 5 + (1 << 62)]), np.array([0, 0]))
    assert large[0] != large[1]
