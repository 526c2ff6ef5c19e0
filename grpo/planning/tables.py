"""A plan on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

from grpo.planning.plan import Plan
from grpo.planning.repair import Change
from grpo.telemetry.formatting import count, per_cent, seconds

_SHOWN_PARTS = 3  # of a phase, the largest; JSON has all of them


def print_plan(plan: Plan, console: Console) -> None:
    """Headline, memory, time, work and traffic."""
    console.print(headline(plan), highlight=False)
    console.print(Group(memory_table(plan), time_table(plan), work_table(plan), collective_table(plan)))
    console.print(_footer(plan), highlight=False)


def headline(plan: Plan) -> str:
    """What is planned, in three lines."""
    p, work = plan.setting.parallel, plan.setting.workload
    degrees = f"{p.backend}: tensor {p.tensor} x pipeline {p.pipeline} x data {p.data}"
    extras = [
        name
        for name, on in (
            ("sequence parallel", p.sequence_parallel),
            ("recompute", p.recompute),
            ("parameters on the CPU", p.cpu_offload),
        )
        if on
    ]
    lengths, partition = work.lengths, plan.setting.partition
    lines = (
        (
            f"{plan.setting.model.name}, {count(plan.setting.model.parameters)} parameters, on {plan.gpus} GPUs of "
            f"{partition.name} ({partition.gpu})"
        ),
        ", ".join((degrees, *extras)),
        (
            f"{work.samples} samples a step in {work.updates} updates; prompt {lengths.prompt} tokens, completion "
            f"{lengths.mean:.0f} on average, the longest {lengths.completions[-1]}"
        ),
    )
    return "\n".join(lines)


def memory_table(plan: Plan) -> Table:
    """Gibibytes on the fullest GPU by phase."""
    limit = plan.setting.partition.memory_bytes.value
    table = _table(f"Memory of the fullest GPU, GiB of {limit / 2**30:.1f}")
    table.add_column("")
    for phase in plan.memory:
        gpus = "" if phase.gpus == "all" else f"\n({phase.gpus} GPUs)"
        table.add_column(f"{phase.phase}{gpus}", justify="right")
    for name in dict.fromkeys(name for phase in plan.memory for name in phase.bytes):
        sizes = [phase.bytes.get(name, 0.0) for phase in plan.memory]
        if any(sizes):
            table.add_row(name, *(f"{size / 2**30:.1f}" if size else "" for size in sizes))
    table.add_section()
    marks = ["" if phase.total <= limit else " !" for phase in plan.memory]
    totals = [f"{phase.total / 2**30:.1f}{mark}" for phase, mark in zip(plan.memory, marks, strict=True)]
    table.add_row("total", *totals, style="bold")
    return table


def time_table(plan: Plan) -> Table:
    """Seconds of each phase, what binds it, and its largest parts."""
    table = _table("Time of a step")
    for name, right in (("phase", False), ("seconds", True), ("share", True), ("bound by", False), ("of which", False)):
        table.add_column(name, justify="right" if right else "left")
    for each in plan.times:
        parts = sorted(each.parts, key=lambda part: -part.seconds)[:_SHOWN_PARTS]
        shown = [f"{part.name} {seconds(part.seconds)}" for part in parts if part.seconds]
        table.add_row(
            each.phase, f"{each.seconds:.1f}", per_cent(each.seconds / plan.seconds), each.binds, "; ".join(shown)
        )
    table.add_section()
    speed = f"{count(plan.tokens_per_second_per_gpu)} tokens/s/GPU, MFU of training {per_cent(plan.training_mfu)}"
    table.add_row("total", f"{plan.seconds:.1f}", "", "", speed, style="bold")
    return table


def work_table(plan: Plan) -> Table:
    """FLOPs of a step."""
    table = _table("FLOPs of a step, all GPUs, without padding; attention's causal half")
    for name in ("", "layers", "attention", "output layer", "total"):
        table.add_column(name, justify="right" if name else "left")
    rows = (
        ("training, forward and backward", plan.flops.training),
        ("recomputed, not in MFU", plan.flops.recompute),
        ("log-probs", plan.flops.logprobs),
    )
    for name, each in rows:
        if each.total:
            values = (each.layers, each.attention, each.head, each.total)
            table.add_row(name, *(f"{value:.3g}" for value in values))
    return table


def collective_table(plan: Plan) -> RenderableType:
    """Bytes of one rank by kind."""
    if not plan.collectives:
        return ""
    table = _table("Collectives of one rank in a step")
    for name, right in (("phase", False), ("kind", False), ("GB", True), ("over", False), ("seconds alone", True)):
        table.add_column(name, justify="right" if right else "left")
    for each in plan.collectives:
        table.add_row(each.phase, each.kind, f"{each.bytes / 1e9:.1f}", each.link, f"{each.seconds:.2f}")
    return table


def shortage_message(plan: Plan, changes: Sequence[Change]) -> str:
    """Why a plan does not fit, and what would."""
    lines = [f"it does not fit: {'; '.join(plan.shortages)}"]
    if not changes:
        return "\n".join(
            [*lines, "no change of one or two keys makes it fit, nor all that cost only time with up to 64 nodes"]
        )
    smallest, *others = changes
    lines.append(f"smallest change that fits: {_described(smallest)}")
    lines += [f"also fits: {_described(each)}" for each in others]
    return "\n".join(lines)


def _described(change: Change) -> str:
    peak = max(each.total for each in change.plan.memory)
    gpus = f"{change.plan.gpus} GPUs, "
    return f"{' '.join(change.overrides)} ({gpus}{peak / 2**30:.1f} GiB at most, {change.plan.seconds:.1f} s a step)"


def _footer(plan: Plan) -> str:
    engine, sampled = plan.engine, plan.generation
    kept, again = plan.activations.without_recompute / 2**30, plan.activations.with_recompute / 2**30
    return (
        f"Activations {kept:.1f} GiB, with recompute {again:.1f}. {sampled.engines} engines of {sampled.sequences} "
        f"sequences, {sampled.concurrent} at a time, {sampled.steps} token steps; the KV cache holds "
        f"{count(engine.kv_tokens)} tokens. Every constant and its source: --json; formulas: docs/planning.md."
    )


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False)
