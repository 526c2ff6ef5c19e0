"""The Markdown page of a run, made of its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.gpu.goals import judged
from benchmarks.paired import Spread

GIB = 2**30
BEST_PRODUCTS = 800e12  # bf16 products of 8192^3 on an H200

Record = dict[str, Any]
_TERMS = {"layers": "layers", "attention": "attention (causal half)", "head": "output layer"}


def markdown(records: Sequence[Record]) -> str:
    """All parts in their order; a record of an unknown kind is an error."""
    lines = ["# Policy workers on GPUs", ""]
    part = None
    for record in records:
        if record["part"] != part and record["kind"] != "machine":
            part = record["part"]
            lines += [f"## {part}", ""]
        lines += [*_KINDS[record["kind"]](record), ""]
    lines += ["## Goals", "", "| part | | figure | reached |", "|---|---|---:|---|"]
    lines += [
        f"| {record['part']}, {record.get('cap', '')} | {name} | {value:.3f} | {'yes' if reached else '**no**'} |"
        for record in records
        for name, value, reached in judged(record)
    ]
    return "\n".join(lines) + "\n"


def _machine(record: Record) -> list[str]:
    versions = ", ".join(f"{name} {version or 'absent'}" for name, version in record["versions"].items())
    return [f"{record['gpu'] or 'no GPU'}; Python {record['python']}, {versions}; `{' '.join(record['argv'])}`"]


def _about(record: Record) -> str:
    gpus = f", {record['gpus']} GPUs" if "gpus" in record else ""
    return f"{record['shape']}, {record['backend']}{gpus}, packs of {record['cap']} tokens"


def _training(record: Record) -> list[str]:
    flops = record["flops"]
    terms = " + ".join(f"{name} {flops[key] / 1e12:.2f}" for key, name in _TERMS.items())
    counted = f"{flops['total'] / 1e12:.1f} TFLOP = {terms}"
    lines = [
        f"Forward, backward and optimizer, {_about(record)}: {_work(record)}; {counted}.",
        "", "| | s an update (median, least - greatest) | MFU |", "|---|---|---:|",
    ]  # fmt: skip
    lines += [
        f"| {name} | {_spread(values)} | {record['mfu'][name]:.3f} |" for name, values in record["seconds"].items()
    ]
    return lines + (["", _ratio("ours / bare", record["ratio"])] if "ratio" in record else [])


def _work(record: Record) -> str:
    tokens = f"{record['tokens']} tokens ({record['trained_tokens']} trained)"
    return f"{record['sequences']} sequences, {tokens} in {record['packs']} packs a GPU and update"


def _scoring(record: Record) -> list[str]:
    lines = [
        f"Log-prob pass, {_about(record)}; bare: the same packs forward with bfloat16 logits, nothing made of them.",
        "", "| | s a pass | MFU |", "|---|---|---:|",
    ]  # fmt: skip
    lines += [
        f"| {name} | {_spread(each)} | {record['mfu'].get(name, 0):.3f} |" for name, each in record["seconds"].items()
    ]
    return [*lines, "", _ratio("speed of ours / bare", record["ratio"])]


def _memory(record: Record) -> list[str]:
    parts = ", ".join(f"{name} {value / GIB:.1f}" for name, value in record["planned"].items() if value)
    error = "" if record["error"] is None else f", error {100 * record['error']:+.1f} %"
    planned = f"planned {record['planned_total'] / GIB:.1f} GiB ({parts})"
    measured = f"measured {record['measured'] / GIB:.1f} GiB{error}"
    reserved = f"reserved by the allocator for the whole process {record['reserved'] / GIB:.1f} GiB"
    return [f"Peak memory in training, {_about(record)}: {planned}, {measured}; {reserved}."]


def _plan(record: Record) -> list[str]:
    total = sum(record["planned"].values()) / GIB
    failed = f" It fitted by the plan, but: {record['failed'].splitlines()[0]}" if "failed" in record else ""
    return [f"{_about(record)}: {total:.1f} GiB planned: {'tried' if record['fits'] else 'not tried'}.{failed}"]


def _waits(record: Record) -> list[str]:
    waits = record["waits"]
    if not waits:
        return ["An update waits for the GPU nowhere that torch sees."]
    return ["An update waits for the GPU at:", "", *(f"- {place}: {times} times" for place, times in waits.items())]


def _shares(record: Record) -> list[str]:
    kinds, wall = record["kinds"], record["wall"]
    busy = sum(each["seconds"] for each in kinds.values())
    ideal = record["model_flops"] / BEST_PRODUCTS
    spent = f"{1e3 * wall:.1f} ms, of which {1e3 * max(0.0, wall - busy):.1f} no kernel runs"
    rate = f"{record['model_flops'] / wall / 1e12:.0f} TFLOP/s"
    gap = f"At 800 the model's operations take {1e3 * ideal:.1f} ms: a gap of {1e3 * (wall - ideal):.1f} ms."
    lines = [
        f"Where {record['side']} spends an update of {record['packs']} packs, {_about(record)}: {spent}; {rate}. {gap}",
        "", "| | ms | share | TFLOP/s | ms over its products at 800 TFLOP/s |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, each in kinds.items():
        flops = record["attention_flops"] if name == "attention" else each["flops"]
        rate = f"{flops / each['seconds'] / 1e12:.0f}" if flops and each["seconds"] else ""
        spent, over = each["seconds"], each["seconds"] - flops / BEST_PRODUCTS
        lines.append(f"| {name} | {1e3 * spent:.1f} | {100 * spent / wall:.1f} % | {rate} | {1e3 * over:.1f} |")
    return lines


def _step(record: Record) -> list[str]:
    seconds = record["seconds"]
    lines = [
        f"Whole steps, {record['shape']}, engine {record['engine']}, median of {record['steps']} after warm-up.",
        "", "| " + " | ".join(seconds) + " |", "|" + "---:|" * len(seconds),
        "| " + " | ".join(f"{value:.3f}" for value in seconds.values()) + " |", "",
    ]  # fmt: skip
    if not record.get("whole", True):
        lines = [lines[0] + " The time was over before the last step was.", *lines[1:]]
    around = record["around"]
    share = " - ".join(f"{100 * around[name]:.2f}" for name in ("low", "high"))
    return [*lines, f"data + rewards + advantages + other: {100 * around['median']:.2f} % of a step ({share})."]


def _limits(record: Record) -> list[str]:
    rates = "; ".join(f"{name} {rate / 1e12:.0f}" for name, rate in record["products"].items())
    return [
        f"Products in TFLOP/s ({record['shape']}): {rates}. Copies: {record['copy'] / 1e12:.2f} TB/s read and written."
    ]


def _failure(record: Record) -> list[str]:
    return ["**failed**", "", "```", record["traceback"].rstrip(), "```"]


def _skipped(record: Record) -> list[str]:
    return [f"Not begun: {record['left']:.0f} s were left of the {record['needs']:.0f} that it needs."]


def _began(record: Record) -> list[str]:
    return [f"The first update, {_about(record)}, which makes the optimizer's state: {record['seconds']:.1f} s."]


def _offloaded(record: Record) -> list[str]:
    """What of an update the CPU's work is, and what the bus alone would take."""
    cpu, packs, moved = record["seconds"], record["packs"], record["parameter_bytes"]
    passes = record["update"] - sum(cpu.values())
    parts = ", ".join(f"{name} {value:.3f}" for name, value in cpu.items())
    told = f"Of its {record['update']:.3f} s the passes of {packs} packs take {passes:.3f}; the optimizer's, on "
    told += f"{record['threads']} threads of the CPU: {parts}."
    if "to_gpu" in record:
        up, down = (times * packs * moved / record[way] for times, way in ((2, "to_gpu"), (1, "to_host")))
        told += (
            f" {moved / GIB:.1f} GiB of float32 cross the bus to the GPU twice a pack, {up:.3f} s at the "
            f"{record['to_gpu'] / 1e9:.1f} GB/s measured beside, and back once, {down:.3f} s at "
            f"{record['to_host'] / 1e9:.1f}: both ways at once, the passes are {passes / max(up, down):.2f} of that."
        )
    return [told]


def _took(record: Record) -> list[str]:
    return [f"({record['seconds']:.0f} s)"]


def _spread(values: Sequence[float]) -> str:
    found = Spread.of(values)
    return f"{found.median:.4f} ({found.low:.4f} - {found.high:.4f}, n = {len(values)})"


def _ratio(name: str, ratio: Record) -> str:
    return f"{name}: {ratio['of_medians']:.3f} (rounds: {ratio['low']:.3f} - {ratio['high']:.3f})"


_KINDS: dict[str, Callable[[Record], list[str]]] = {
    "machine": _machine, "training": _training, "scoring": _scoring, "memory": _memory, "plan": _plan, "waits": _waits,
    "shares": _shares, "step": _step, "limits": _limits, "failure": _failure, "skipped": _skipped, "took": _took,
    "began": _began, "offloaded": _offloaded,
}  # fmt: skip
