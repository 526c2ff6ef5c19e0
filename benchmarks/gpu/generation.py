"""`python -m benchmarks.gpu.generation`: our engine against vLLM as it is, milliseconds a token step, side by side.

One engine with random weights, the ways to ask it in turn: as the trainer does; vLLM's own `generate` without and with
log-probs, its scheduler and sampler as they come. Equal prompts, seeds and pinned lengths.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.clock import alternately
from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.step import model_folder
from grpo.config.schema import Config
from grpo.workers.generation import vllm_compat, vllm_steps
from grpo.workers.generation.vllm import VllmGenerator
from grpo.workers.generation.vllm_arguments import engine_arguments
from grpo.workers.protocol import SamplingParams

PROMPT_TOKENS = 128
OURS, PLAIN, WITH_LOGPROBS = "ours", "vLLM, no log-probs", "vLLM, log-probs of sampled tokens"


def engine_config(folder: Path, *, context: int, memory: float, graphs: int, on_gpu: bool, **vllm_cfg: Any) -> Config:
    """An engine of its own on a GPU, with graphs up to `graphs` sequences."""
    return Config.model_validate(
        {
            "grpo": {"num_prompts_per_step": max(1, graphs // 16), "num_generations_per_prompt": 16},
            "policy": {
                "model_name": str(folder), "precision": "bfloat16" if on_gpu else "float32",
                "max_total_sequence_length": context,
                "generation": {"backend": "vllm", "vllm_cfg": {"gpu_memory_utilization": memory, **vllm_cfg}},
            },
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
            "cluster": {"gpus_per_node": int(on_gpu)},
        }
    )  # fmt: skip


@contextmanager
def started(config: Config, folder: Path, **changes: Any) -> Iterator[VllmGenerator]:
    """Our engine on a folder without weights; `changes` are of vLLM's own arguments."""
    arguments = engine_arguments(config, folder) | {"load_format": "dummy"} | changes
    engine = VllmGenerator(config, folder, arguments)
    try:
        yield engine
    finally:
        engine.shutdown()


def random_weights(engine: VllmGenerator, *, seed: int = 0) -> list[tuple[str, torch.Tensor]]:
    """What a policy would send, on the engine's device: normal with deviation 0.02, norms 1."""
    made = torch.Generator(engine.device).manual_seed(seed)
    dtype = torch.bfloat16 if engine.device == "cuda" else torch.float32
    return [
        (
            name,
            torch.ones(shape, dtype=dtype, device=engine.device)
            if len(shape) == 1
            else torch.randn(shape, dtype=dtype, device=engine.device, generator=made) * 0.02,
        )
        for name, shape in engine.expected.shapes.items()
    ]


def prompts(count: int) -> list[list[int]]:
    """Different ones of equal length."""
    return [[(7 * number + place) % 250 for place in range(PROMPT_TOKENS)] for number in range(count)]


@contextmanager
def untouched(engine: VllmGenerator) -> Iterator[None]:
    """VLLM's scheduler as it is."""
    if not engine.short_steps:
        yield
        return
    vllm_steps.undo(engine.engine)
    try:
        yield
    finally:
        vllm_steps.shorten(engine.engine)


def ways(engine: VllmGenerator, sequences: int, tokens: int, temperature: float = 1.0) -> dict[str, Callable[[], Any]]:
    """What is timed, by name: every one samples `sequences` x `tokens`, one completion a prompt of 16 each."""
    groups = max(1, sequences // 16)
    each = sequences // groups
    given = prompts(groups)
    sampling = SamplingParams(tokens, temperature=temperature, min_new_tokens=tokens)

    def ours() -> Any:
        return engine.generate(given, each, sampling, list(range(groups)))

    def plain(logprobs: int | None) -> Any:
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked = [
            VllmSamplingParams(
                temperature=temperature,
                seed=seed,
                max_tokens=tokens,
                min_tokens=tokens,
                ignore_eos=True,
                logprobs=logprobs,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for seed in range(sequences)
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in given for _ in range(each)]
        with untouched(engine), vllm_compat.sampling_context(engine.device):
            return engine.engine.generate(requests, asked, use_tqdm=False)

    return {OURS: ours, PLAIN: lambda: plain(None), WITH_LOGPROBS: lambda: plain(0)}


def token_steps(
    engine: VllmGenerator, sequences: int, tokens: int, *, rounds: int, deadline: float = float("inf")
) -> dict[str, Any]:
    """Medians of milliseconds a token step of each way, with all their values."""
    found = alternately(
        ways(engine, sequences, tokens), rounds=rounds, device=engine.device, warm_up=1, deadline=deadline
    )
    ms = {name: [1e3 * value / tokens for value in values] for name, values in found.items()}
    return {
        "sequences": sequences, "tokens": tokens, "ms": {name: median(values) for name, values in ms.items()},
        "all": ms,
    }  # fmt: skip


def logprob_differences(engine: VllmGenerator) -> list[dict[str, Any]]:
    """Recorded log-probs against vLLM's own: same requests asked both ways, of several kinds of sampling at once."""
    found = []
    for temperature, top_p, top_k in ((1.0, 1.0, None), (0.7, 0.9, None), (1.3, 1.0, 40), (0.0, 1.0, None)):
        sampling = SamplingParams(
            48, temperature=temperature, top_p=top_p, top_k=top_k, stop_token_ids=tuple(range(0, 128256, 37))
        )
        mine = engine.generate(prompts(12), 4, sampling, list(range(12)))
        with engine.own_logprobs():
            own = engine.generate(prompts(12), 4, sampling, list(range(12)))
        pairs = [(a, b) for first, second in zip(mine, own, strict=True) for a, b in zip(first, second, strict=True)]
        worst = max((abs(x - y) for a, b in pairs for x, y in zip(a.logprobs, b.logprobs, strict=False)), default=0.0)
        found.append(
            {
                "temperature": temperature, "top_p": top_p, "top_k": top_k,
                "same_tokens": sum(a.token_ids == b.token_ids for a, b in pairs) / len(pairs),
                "worst": worst, "lengths": sorted({len(a.token_ids) for a, _ in pairs}),
            }
        )  # fmt: skip
    return found


def refit_seconds(engine: VllmGenerator, *, rounds: int = 5) -> dict[str, float]:
    """Seconds of `update_weights` from tensors on the engine's device, and bytes a second."""
    weights = random_weights(engine)
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in weights)
    times = []
    for _ in range(rounds):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        engine.update_weights(iter(weights), 0)
        times.append(time.perf_counter() - began)
    best = median(times)
    return {"bytes": size, "seconds": best, "first": times[0], "bytes_per_s": size / best, "tensors": len(weights)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.generation", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file, a JSON object a line")
    parser.add_argument("--folder", type=Path, required=True, help="for the model's folder")
    parser.add_argument("--shape", choices=list(SHAPES_BY_NAME), default="1b")
    parser.add_argument("--sequences", type=int, nargs="*", default=[256, 64, 1024], help="none: weights alone")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=400.0, help="no round begins after these")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    folder = model_folder(SHAPES_BY_NAME[options.shape], options.folder)
    on_gpu = torch.cuda.is_available()
    largest = max(options.sequences, default=16)
    graphs = {"cudagraph_capture_sizes": sorted(options.sequences)} if options.sequences else {"enforce_eager": True}
    config = engine_config(folder, context=1024 if on_gpu else 512, memory=0.5, graphs=largest, on_gpu=on_gpu)
    began = time.perf_counter()
    with started(config, folder, **graphs) as engine:
        write(options.out, "started", seconds=time.perf_counter() - began, version=vllm_compat.version_string(),
              recorded=engine.recorded, short_steps=engine.short_steps, in_place=engine.in_place)  # fmt: skip
        write(options.out, "refit", **refit_seconds(engine))
        if options.sequences:
            write(options.out, "logprobs", found=logprob_differences(engine))
        for sequences in options.sequences:
            found = token_steps(engine, sequences, options.tokens, rounds=options.rounds, deadline=deadline)
            write(options.out, "token step", **found)


def write(path: Path, kind: str, **values: Any) -> None:
    """Append a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"kind": kind, **values}) + "\n")
    print(kind, json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
