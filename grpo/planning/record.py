"""A plan as JSON values: bytes, seconds and operations, without rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo.planning.plan import Plan
from grpo.planning.repair import Change

SCHEMA_VERSION = 1


def plan_record(plan: Plan, changes: Sequence[Change] = ()) -> dict[str, Any]:
    """Everything that a plan says, and the changes that would make it fit, smallest first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": {
            "name": plan.setting.model.name,
            "parameters": plan.setting.model.parameters,
            **asdict(plan.setting.model.dimensions),
        },
        "partition": {
            "name": plan.setting.partition.name,
            "gpu": plan.setting.partition.gpu,
            "figures": {name: asdict(figure) for name, figure in plan.setting.partition.figures().items()},
        },
        "layout": {"gpus": plan.gpus, **asdict(plan.setting.parallel)},
        "assumptions": asdict(plan.assumptions),
        "workload": _workload(plan),
        "fits": plan.fits,
        "shortages": list(plan.shortages),
        "changes": [_change(each) for each in changes],
        "memory": {
            "limit_bytes": plan.setting.partition.memory_bytes.value,
            "phases": [
                {"phase": each.phase, "gpus": each.gpus, "total_bytes": each.total, "bytes": dict(each.bytes)}
                for each in plan.memory
            ],
            "activation_bytes": asdict(plan.activations),
        },
        "engine": asdict(plan.engine),
        "generation": asdict(plan.generation),
        "flops": {
            "training": {**asdict(plan.flops.training), "total": plan.flops.training.total},
            "recompute": {**asdict(plan.flops.recompute), "total": plan.flops.recompute.total},
            "logprobs": {**asdict(plan.flops.logprobs), "total": plan.flops.logprobs.total},
        },
        "collectives": [asdict(each) for each in plan.collectives],
        "times": [
            {
                "phase": each.phase,
                "seconds": each.seconds,
                "binds": each.binds,
                "parts": [asdict(part) for part in each.parts],
            }
            for each in plan.times
        ],
        "step_seconds": plan.seconds,
        "training_mfu": plan.training_mfu,
        "tokens_per_second_per_gpu": plan.tokens_per_second_per_gpu,
    }


def _workload(plan: Plan) -> dict[str, Any]:
    work = plan.setting.workload
    return {
        "samples": work.samples,
        "updates": work.updates,
        "prompt_tokens": work.lengths.prompt,
        "completion_tokens_mean": work.lengths.mean,
        "completion_tokens_max": work.lengths.completions[-1],
        "scoring_passes": work.scoring_passes,
        "reference_passes": work.reference_passes,
        "busiest_rank": {"training": asdict(work.training), "logprobs_pass": asdict(work.scoring)},
        "largest_micro_batch_tokens": {"training": work.train_cap, "logprobs": work.score_cap},
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "overrides": list(change.overrides),
        "gpus": change.plan.gpus,
        "step_seconds": change.plan.seconds,
        "peak_bytes": max(each.total for each in change.plan.memory),
    }
