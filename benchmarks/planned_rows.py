"""What `grpo plan` says of the published 8B and 70B runs and their reruns, beside what was reported.

Run `python -m benchmarks.planned_rows` to write the table into docs/planning.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.config import load_config
from grpo.planning.parameters import load_model_shapes
from grpo.planning.partition import Figure, load_partition
from grpo.planning.plan import Assumptions, Plan, make_plan
from grpo.planning.resident import Resident

PAGE = Path(__file__).parents[1] / "docs" / "planning.md"
BEGIN, END = "<!-- rows: python -m benchmarks.planned_rows -->\n", "<!-- end of rows -->\n"
_PHASES = ("policy_training", "refit", "generation", "logprobs")
# The engine that was reported on returns log-probs as vLLM does: the same page's third way, by the same line.
_MEASURED = "measured: docs/measurements/h200-generation.md, vLLM's generate with log-probs: 3.2, 7.35, 24.8 ms"
VLLMS_OWN = {"engine_step_s": Figure(1.45e-3, _MEASURED), "engine_sequence_s": Figure(17.4e-6, _MEASURED)}


@dataclass(frozen=True)
class Row:
    """A reported run on H100 80 GB; seconds."""

    name: str
    recipe: str
    tokens: int  # generated a sample
    total: int
    phases: tuple[int, int, int, int]  # policy training, refit, generation, log-probs


ROWS = (
    Row("8B Megatron, 1x8", "grpo_math_8b_megatron", 795, 112, (28, 5, 58, 18)),
    Row("rerun", "grpo_math_8b_megatron", 811, 116, (27, 8, 56, 18)),
    Row("8B DTensor, 1x8", "grpo_math_8b", 777, 122, (38, 4, 57, 19)),
    Row("rerun", "grpo_math_8b", 802, 129, (40, 6, 55, 19)),
    Row("70B Megatron, 8x8", "grpo_math_70b_megatron", 398, 147, (28, 14, 84, 18)),
    Row("rerun", "grpo_math_70b_megatron", 396, 178, (31, 26, 87, 20)),
    Row("70B DTensor, 8x8", "grpo_math_70b", 395, 230, (97, 15, 82, 28)),
    Row("rerun", "grpo_math_70b", 411, 266, (117, 20, 88, 29)),
)


def planned(row: Row, engine: Mapping[str, Figure] = VLLMS_OWN) -> Plan:
    """The plan of a reported run; `engine`: figures that replace the partition's, which are this project's engine's."""
    config = load_config(row.recipe).config
    partition = replace(load_partition("h100-80g"), **engine)
    return make_plan(
        load_model_shapes(config.policy.model_name),
        config,
        partition,
        Assumptions(completion_tokens=row.tokens, resident=Resident.NONE),
    )


def table() -> str:
    """Predicted seconds / reported seconds (error), and what binds the phase."""
    lines = [
        "| run | total | policy training | refit | generation | log-probs | rest | generation here |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in ROWS:
        plan = planned(row)
        times = {each.phase: each for each in plan.times}
        cells = [_cell(plan.seconds, row.total)]
        cells += [
            f"{_cell(times[phase].seconds, reported)}, {times[phase].binds}"
            for phase, reported in zip(_PHASES, row.phases, strict=True)
        ]
        cells.append(f"{times['other'].seconds:.1f} / {row.total - sum(row.phases)}")
        cells.append(f"{planned(row, {}).generation.seconds:.1f}")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(predicted: float, reported: float) -> str:
    return f"{predicted:.1f} / {reported} ({100 * (predicted / reported - 1):+.0f} %)"


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
