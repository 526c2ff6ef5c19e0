"""The pictures of a report, as SVG, in the colours of the light theme."""

import io
import itertools
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.telemetry.charts import CHARTS, Chart, Line
from grpo.telemetry.reader import Run
from grpo.telemetry.summary import finite
from grpo.telemetry.theme import LIGHT
from grpo.telemetry.timers import PHASES

# Width in SVG units (1/72 inch). A picture is shown at 340 to 600 CSS pixels: the text stays readable at both.
WIDTH, HEIGHT = 400.0, 250.0
FONT_SIZE = 13.0
MAX_POINTS = 400
MAX_BARS = 150


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    note: str
    description: str  # for those who do not see it: what is drawn and its last values
    svg: str  # standalone document fragment `<svg ...>`, light colours


def draw_figures(run: Run) -> list[Figure]:
    """Every picture whose metrics the run has, in reading order; none for a run without steps."""
    drawn: list[Figure | None] = []
    for chart in CHARTS:
        drawn.append(_draw_chart(run, chart))
        if chart.name == "lengths":
            drawn.append(_draw_phases(run))
    return [figure for figure in drawn if figure is not None]


def _draw_chart(run: Run, chart: Chart) -> Figure | None:
    upper = [line for line in chart.lines if _worth_drawing(run, line)]
    lower = [line for line in chart.lower if _worth_drawing(run, line)]
    if not upper:
        return None

    def draw(figure: Any) -> None:
        if lower:
            top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1), gridspec_kw={"hspace": 0.42})
            panels = [(top, upper, chart.unit), (bottom, lower, chart.lower_unit)]
        else:
            panels = [(figure.subplots(), upper, chart.unit)]
        for axes, lines, unit in panels:
            small = axes is not panels[0][0]
            for line in lines:
                _draw_line(axes, run, line)
            if chart.name == "reward":
                _draw_chance(axes, run)
            finish_axes(axes, unit, from_zero=chart.from_zero, ticks=3 if small else 5)
            legend(axes)
        panels[-1][0].set_xlabel("step")
        place(figure, legend_rows=1)

    last = "; ".join(f"{line.label} {finite(run, line.metric)[-1][1]:.4g}" for line in (*upper, *lower))
    return Figure(chart.name, chart.title, chart.note, f"{chart.title} by step. Last values: {last}.", svg_of(draw))


def _worth_drawing(run: Run, line: Line) -> bool:
    """Measured at least once; of the memory of a GPU that is not there, more than zero."""
    values = finite(run, line.metric)
    return bool(values) and (line.metric != "memory/allocated_gib" or any(value for _, value in values))


def _draw_line(axes: Any, run: Run, line: Line) -> None:
    pairs = finite(run, line.metric)
    steps, values = thin([step for step, _ in pairs], [value for _, value in pairs])
    color = LIGHT[line.color]
    single = "o" if len(steps) == 1 else None
    if line.smooth and len(steps) > 10:
        axes.plot(steps, values, color=color, alpha=0.28, linewidth=0.9)
        axes.plot(steps, smooth(values), color=color, linewidth=1.8, label=line.label)
        return
    axes.plot(
        steps,
        values,
        color=color,
        linewidth=1.3 if line.dashed else 1.6,
        linestyle=(0, (3, 1.5)) if line.dashed else "-",
        marker="o" if line.marker else single,
        markersize=3.5,
        label=line.label,
    )


def _draw_chance(axes: Any, run: Run) -> None:
    chance = run.manifest.facts.get("chance")
    if isinstance(chance, int | float):
        axes.axhline(chance, color=LIGHT["muted"], linewidth=1.1, linestyle=(0, (1, 1.5)), label=f"chance {chance:.2f}")


def _draw_phases(run: Run) -> Figure | None:
    records = [record for record in run.metrics if record.get("timing/total")]
    names = [name for name in (*PHASES, "other") if any(record.get(f"timing/{name}") for record in records)]
    if not names:
        return None
    columns = [[_height(record.get(f"timing/{name}")) for record in records] for name in names]
    steps = [record["step"] for record in records]
    whole = sum(map(sum, columns)) or 1.0
    bins = [thin(steps, column, MAX_BARS) for column in columns]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        positions = bins[0][0]
        edges = _edges(positions)
        base = [0.0] * len(positions)
        for name, column, (_, heights) in zip(names, columns, bins, strict=True):
            top = [a + b for a, b in zip(base, heights, strict=True)]
            # The table under the pictures names the phases too thin to be seen.
            label = name.replace("_", " ") if sum(column) >= 0.01 * whole else None
            axes.stairs(top, edges, baseline=base, fill=True, color=LIGHT[f"phase-{name}"], linewidth=0, label=label)
            base = top
        # In a long run, a first step that compiles or warms up would press the others flat.
        usual = sorted(base)[int(0.98 * (len(base) - 1))] if len(base) >= 50 else max(base)
        finish_axes(axes, "seconds a step", from_zero=True)
        axes.set_ylim(0, 1.15 * usual or 1)
        axes.set_xlabel("step")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(0, 1), ncols=3, fontsize=FONT_SIZE - 1.5,
            handlelength=0.9, handleheight=0.9, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.2,
        )  # fmt: skip
        place(figure, legend_rows=math.ceil(len(labels) / 3))

    last = "; ".join(f"{name} {column[-1]:.3g} s" for name, column in zip(names, columns, strict=True))
    title = "Time by phase"
    return Figure("phases", title, "", f"Seconds of each step, stacked by phase. Last step: {last}.", svg_of(draw))


def _height(seconds: float | None) -> float:
    """What a bar can show: 0 for a phase that was not measured, is not finite, or is negative by rounding."""
    return seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else 0.0


def _edges(positions: Sequence[float]) -> list[float]:
    """Borders of bars around the positions, half-way between neighbours; of a single one, a step wide."""
    between = [(a + b) / 2 for a, b in itertools.pairwise(positions)]
    first = between[0] - positions[0] if between else 0.5
    last = positions[-1] - between[-1] if between else 0.5
    return [positions[0] - first, *between, positions[-1] + last]


def thin(steps: Sequence[int], values: Sequence[float], limit: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """At most `limit` points, each the mean of as many neighbours as it stands for."""
    size = math.ceil(len(steps) / limit)

    def means(of: Sequence[float]) -> list[float]:
        return [statistics.fmean(part) for part in (of[i : i + size] for i in range(0, len(of), size))]

    return means(steps), means(values)


def smooth(values: Sequence[float]) -> list[float]:
    """Centred running mean over about a twentieth of the run: it does not lag behind. Cut off at the ends."""
    half = max(len(values) // 40, 2)
    return [statistics.fmean(values[max(i - half, 0) : i + half + 1]) for i in range(len(values))]


def finish_axes(axes: Any, unit: str, *, from_zero: bool, ticks: int = 5) -> None:
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=LIGHT["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT["muted"])
    axes.tick_params(length=0, colors=LIGHT["muted"], labelsize=FONT_SIZE - 1.5)
    axes.tick_params(axis="x", length=3)
    axes.locator_params(axis="y", nbins=ticks)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    if from_zero and low > -0.2 * (high - low):
        axes.set_ylim(0, high if high > 0 else 1)


def place(figure: Any, *, legend_rows: int) -> None:
    """Fixed margins in SVG units. A layout engine would draw everything twice, and pictures side by side line up."""
    top = 10 + 17 * legend_rows
    figure.subplots_adjust(left=62 / WIDTH, right=1 - 8 / WIDTH, bottom=42 / HEIGHT, top=1 - top / HEIGHT)


def legend(axes: Any) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=FONT_SIZE - 1.5, handlelength=1.4,
        columnspacing=1.2, handletextpad=0.5, borderaxespad=0.1, frameon=False,
    )  # fmt: skip


def svg_of(draw: Callable[[Any], None]) -> str:
    """Draw on a fresh figure, without pyplot: no global state, no display."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": FONT_SIZE,
        "text.color": LIGHT["ink"],
        "axes.labelcolor": LIGHT["muted"],
        "axes.labelsize": FONT_SIZE - 1.5,
        "axes.facecolor": "none",
        "axes.formatter.useoffset": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "grpo",
        "legend.frameon": False,
    }
    with mpl.rc_context(style):
        canvas = Canvas(figsize=(WIDTH / 72, HEIGHT / 72))
        canvas.patch.set_alpha(0)
        draw(canvas)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)


def with_background(figure: Figure) -> Figure:
    """The picture for a file of its own, which may be shown on a dark page: on white."""
    end = figure.svg.index(">") + 1
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return replace(figure, svg=figure.svg[:end] + ground + figure.svg[end:])
