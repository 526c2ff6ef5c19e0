"""The pictures of a report, as SVG. Colours are roles (`theme`), so that a page can redraw them for a dark screen."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo.telemetry.reader import Run
from grpo.telemetry.summary import finite
from grpo.telemetry.timers import PHASES

# Width in SVG units (1/72 inch). A picture is shown at 340 to 600 CSS pixels: the text stays readable at both.
WIDTH, HEIGHT = 400.0, 232.0
FONT_SIZE = 11.0
MAX_POINTS = 400

# Roles and the colours of the light theme: Okabe and Ito's palette, darkened where it would be pale on white, which
# readers with any colour vision can tell apart. They stand in the SVG as they are and are replaced by name on a page.
LIGHT = {
    "ink": "#1b2530",
    "muted": "#5d6b79",
    "grid": "#e3e8ed",
    "surface": "#fefefe",
    "series-1": "#0067a5",
    "series-2": "#c85200",
    "series-3": "#007a5a",
    "series-4": "#8a5fa8",
    "phase-data": "#999fa6",
    "phase-refit": "#cc79a7",
    "phase-generation": "#0072b2",
    "phase-rewards": "#f0e442",
    "phase-advantages": "#6f4e37",
    "phase-logprobs": "#56b4e9",
    "phase-policy_training": "#e69f00",
    "phase-validation": "#009e73",
    "phase-checkpoint": "#7b61a8",
    "phase-other": "#c3cad1",
}


@dataclass(frozen=True)
class Line:
    metric: str
    label: str
    color: str = "series-1"
    smooth: bool = False  # the raw values pale, their running mean strong
    marker: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """One picture: lines over steps. `lower` is a second, small panel."""

    name: str
    title: str
    lines: Sequence[Line]
    unit: str = ""
    lower: Sequence[Line] = ()
    lower_unit: str = ""
    log: bool = False
    from_zero: bool = False
    note: str = ""


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    note: str
    description: str  # for those who do not see it: what is drawn and its last values
    svg: str  # standalone document fragment `<svg ...>`, light colours


CHARTS = (
    Chart(
        "reward",
        "Reward and accuracy",
        (
            Line("train/reward", "training reward", "series-1", smooth=True),
            Line("validation/accuracy", "validation accuracy", "series-2", marker=True),
        ),
    ),
    Chart(
        "lengths",
        "Completion length",
        (
            Line("rollout/generated_tokens_per_sample", "mean", "series-1"),
            Line("rollout/completion_length_p95", "95th percentile", "series-3", dashed=True),
            Line("rollout/completion_length_max", "longest", "series-2", dashed=True),
        ),
        unit="tokens",
        lower=(Line("rollout/truncated_fraction", "truncated share", "series-4"),),
        from_zero=True,
    ),
    Chart("kl", "KL to the reference policy", (Line("train/kl", "KL", smooth=True),), unit="nats a token"),
    Chart("entropy", "Entropy", (Line("train/approx_entropy", "entropy", smooth=True),), unit="nats a token"),
    Chart(
        "logprob_error",
        "Engine against trainer",
        (
            Line("train/token_mult_prob_error", "mean", "series-1"),
            Line("train/token_mult_prob_error_p99", "99th percentile", "series-3", dashed=True),
            Line("train/token_mult_prob_error_max", "worst sequence", "series-2", dashed=True),
        ),
        unit="exp |Δ log-prob|",
        note="1 is perfect agreement of the two log-probabilities.",
    ),
    Chart("grad_norm", "Gradient norm", (Line("train/grad_norm", "before clipping", smooth=True),), from_zero=True),
    Chart(
        "signal",
        "Learning signal",
        (
            Line("train/zero_std_fraction", "groups without signal", "series-1"),
            Line("train/clipped_fraction", "clipped tokens", "series-2"),
        ),
        unit="share",
        from_zero=True,
    ),
    Chart(
        "throughput",
        "Throughput",
        (Line("performance/tokens_per_second_per_gpu", "tokens/s/GPU", smooth=True),),
        unit="tokens/s/GPU",
        lower=(Line("performance/mfu", "model FLOP utilisation", "series-3"),),
        from_zero=True,
    ),
    Chart(
        "memory",
        "Memory",
        (
            Line("memory/allocated_gib", "GPU, allocated", "series-1"),
            Line("memory/rss_gib", "host process", "series-3"),
        ),
        unit="GiB",
        from_zero=True,
    ),
)


def draw_figures(run: Run) -> list[Figure]:
    """Every picture whose metrics the run has, in reading order; none for a run without steps."""
    drawn: list[Figure | None] = []
    for chart in CHARTS:
        drawn.append(_draw_chart(run, chart))
        if chart.name == "lengths":
            drawn.append(_draw_phases(run))
    return [figure for figure in drawn if figure is not None]


def themed(svg: str, prefix: str) -> str:
    """The SVG for a page: colours as CSS variables `var(--role)`, ids prefixed so that pictures do not share any."""
    for role, color in LIGHT.items():
        svg = svg.replace(color, f"var(--{role})")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', svg)
    return svg.replace("url(#", f"url(#{prefix}-")


def _draw_chart(run: Run, chart: Chart) -> Figure | None:
    upper = [line for line in chart.lines if _worth_drawing(run, line)]
    lower = [line for line in chart.lower if _worth_drawing(run, line)]
    if not upper:
        return None

    def draw(figure: Any) -> None:
        if lower:
            top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
            panels = ((top, upper, chart.unit), (bottom, lower, chart.lower_unit))
        else:
            panels = ((figure.subplots(), upper, chart.unit),)
        for axes, lines, unit in panels:
            for line in lines:
                _draw_line(axes, run, line)
            if chart.name == "reward":
                _draw_chance(axes, run)
            _finish_axes(axes, unit, from_zero=chart.from_zero)
            _legend(axes, columns=2 if len(lines) < 3 else 3)
        panels[-1][0].set_xlabel("step")

    last = "; ".join(f"{line.label} {finite(run, line.metric)[-1][1]:.4g}" for line in (*upper, *lower))
    return Figure(chart.name, chart.title, chart.note, f"{chart.title} by step. Last values: {last}.", _svg(draw))


def _worth_drawing(run: Run, line: Line) -> bool:
    """Measured at least once; of the memory of a GPU that is not there, more than zero."""
    values = finite(run, line.metric)
    return bool(values) and (line.metric != "memory/allocated_gib" or any(value for _, value in values))


def _draw_line(axes: Any, run: Run, line: Line) -> None:
    steps, values = thin(*map(list, zip(*finite(run, line.metric), strict=True)))
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
    if not records:
        return None
    used = [name for name in (*PHASES, "other") if any(record.get(f"timing/{name}") for record in records)]
    columns = [[max(record.get(f"timing/{name}") or 0.0, 0.0) for record in records] for name in used]
    steps = [record["step"] for record in records]
    bins = [thin(steps, column) for column in columns]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        positions = bins[0][0]
        width = 1.0 if len(positions) < 2 else min(b - a for a, b in zip(positions, positions[1:], strict=False))
        base = [0.0] * len(positions)
        for name, (_, heights) in zip(used, bins, strict=True):
            color = LIGHT[f"phase-{name}"]
            axes.bar(positions, heights, width, bottom=base, color=color, linewidth=0, label=name.replace("_", " "))
            base = [a + b for a, b in zip(base, heights, strict=True)]
        # A first step that compiles or warms up would press the others flat.
        usual = sorted(base)[int(0.98 * (len(base) - 1))]
        _finish_axes(axes, "seconds a step", from_zero=True)
        axes.set_ylim(0, 1.15 * usual)
        axes.set_xlabel("step")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, fontsize=FONT_SIZE - 2.5,
            handlelength=0.9, handleheight=0.9, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.2,
        )  # fmt: skip

    last = "; ".join(f"{name} {column[-1]:.3g} s" for name, column in zip(used, columns, strict=True))
    title = "Time by phase"
    return Figure("phases", title, "", f"Seconds of each step, stacked by phase. Last step: {last}.", _svg(draw))


def thin(steps: list[int], values: list[float]) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points, each the mean of as many neighbours as it stands for."""
    size = math.ceil(len(steps) / MAX_POINTS)
    if size <= 1:
        return [float(step) for step in steps], values
    starts = range(0, len(steps), size)
    mean: Callable[[Sequence[float]], float] = lambda part: sum(part) / len(part)  # noqa: E731
    return [mean(steps[i : i + size]) for i in starts], [mean(values[i : i + size]) for i in starts]


def smooth(values: Sequence[float]) -> list[float]:
    """Exponential moving average, unbiased at its start, over about a fifteenth of the run."""
    decay = 1 - 1 / max(len(values) / 15, 2)
    mean = weight = 0.0
    result = []
    for value in values:
        mean = decay * mean + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        result.append(mean / weight)
    return result


def _finish_axes(axes: Any, unit: str, *, from_zero: bool) -> None:
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=LIGHT["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LIGHT["muted"])
    axes.tick_params(length=0, colors=LIGHT["muted"], labelsize=FONT_SIZE - 1.5)
    axes.tick_params(axis="x", length=3)
    axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    if from_zero and low > -0.2 * (high - low):
        axes.set_ylim(0, high if high > 0 else 1)


def _legend(axes: Any, *, columns: int) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, fontsize=FONT_SIZE - 1.5, handlelength=1.4,
        columnspacing=1.2, handletextpad=0.5, borderaxespad=0.1, frameon=False,
    )  # fmt: skip


def _svg(draw: Callable[[Any], None]) -> str:
    """Draw on a fresh figure, without pyplot: no global state, no display."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    style = {
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
        canvas = Canvas(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
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
