"""The matrix's pictures: a figure over time within its band, and the phases of each run on top of one another."""

from collections.abc import Sequence
from typing import Any

from grpo.matrix.history import Row, series
from grpo.matrix.judge.words import metric_words
from grpo.matrix.report.content import training_rows
from grpo.telemetry.figures import FONT_SIZE, Figure, finish_axes, place, svg_of
from grpo.telemetry.theme import LIGHT
from grpo.telemetry.timers import PHASES

# What is drawn of a case, the first that it has; a case without any of these has its first bounded metric drawn.
LEADING = ("timing/total", "performance/tokens_per_second_per_gpu", "train/reward")
MOST_RUNS = 120  # the latest
TICKS = 4
_COLORS = {"pass": "series-3", "faster": "series-1", "not judged": "muted", "fail": "series-2"}
_MARKERS = {"pass": "o", "faster": "^", "not judged": "o", "fail": "X"}


def draw_matrix(rows: Sequence[Row]) -> list[Figure]:
    """Two pictures at most for each case and partition that has a history, in the order of their names."""
    by_metric = series(training_rows(rows))
    places = sorted({(case, partition) for case, partition, _ in by_metric})
    figures = []
    for case, partition in places:
        metrics = {metric: points for (c, p, metric), points in by_metric.items() if (c, p) == (case, partition)}
        leading = next((name for name in LEADING if name in metrics), min(metrics))
        name = f"{case}-{partition}"
        figures.append(_line(f"{name}-line", f"{case} on {partition}", leading, metrics[leading][-MOST_RUNS:]))
        stack = {phase: metrics[f"timing/{phase}"] for phase in (*PHASES, "other") if f"timing/{phase}" in metrics}
        if len(stack) > 1:
            figures.append(_stack(f"{name}-phases", f"{case} on {partition}: phases", stack))
    return figures


def _line(name: str, title: str, metric: str, points: Sequence[Row]) -> Figure:
    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = range(len(points))
        _band(axes, points)
        axes.plot(places, [row.value for row in points], color=LIGHT["muted"], linewidth=1)
        for outcome, color in _COLORS.items():
            mine = [(place, row.value) for place, row in zip(places, points, strict=True) if row.outcome == outcome]
            if mine:
                axes.plot(
                    *zip(*mine, strict=True), color=LIGHT[color], marker=_MARKERS[outcome], linestyle="none",
                    markersize=5, label=outcome,
                )  # fmt: skip
        finish_axes(axes, points[-1].unit, from_zero=False)
        _dates(axes, points)
        _legend(figure)
        place(figure, legend_rows=1)

    last = points[-1]
    band = "" if last.lower is None and last.upper is None else f", band {_band_words(last)}"
    words = (
        f"{metric_words(metric)} over {len(points)} runs; the last: {last.value:.4g} {last.unit}{band}, {last.outcome}"
    )
    return Figure(name, title, words, f"{title}: {words}.", svg_of(draw))


def _band_words(row: Row) -> str:
    low = "" if row.lower is None else f"{row.lower:.4g}"
    high = "" if row.upper is None else f"{row.upper:.4g}"
    return f"{low} .. {high}".strip()


def _band(axes: Any, points: Sequence[Row]) -> None:
    """The band that each run was judged by, as wide as its place."""
    for place_of, row in enumerate(points):
        span = (place_of - 0.5, place_of + 0.5)
        if row.lower is not None and row.upper is not None:
            axes.fill_between(span, row.lower, row.upper, color=LIGHT["series-3"], alpha=0.13, linewidth=0)
        for bound in (row.lower, row.upper):
            if bound is not None:
                axes.plot(span, (bound, bound), color=LIGHT["series-3"], linewidth=0.9)


def _stack(name: str, title: str, stack: dict[str, list[Row]]) -> Figure:
    times = sorted({row.time for rows in stack.values() for row in rows})[-MOST_RUNS:]
    seconds = {phase: {row.time: row.value or 0.0 for row in rows} for phase, rows in stack.items()}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        base = [0.0] * len(times)
        edges = [place - 0.5 for place in range(len(times) + 1)]
        for phase, values in seconds.items():
            top = [low + max(values.get(time, 0.0), 0.0) for low, time in zip(base, times, strict=True)]
            label = phase.replace("_", " ")
            axes.stairs(top, edges, baseline=base, fill=True, color=LIGHT[f"phase-{phase}"], linewidth=0, label=label)
            base = top
        finish_axes(axes, "seconds a step", from_zero=True)
        axes.set_ylim(0, 1.1 * max(base) or 1)
        _dates(axes, [next(row for rows in stack.values() for row in rows if row.time == time) for time in times])
        _legend(figure)
        place(figure, legend_rows=2 if len(seconds) > 3 else 1)

    last = ", ".join(
        f"{phase.replace('_', ' ')} {values[times[-1]]:.3g} s"
        for phase, values in seconds.items()
        if times[-1] in values
    )
    return Figure(name, title, f"the last run: {last}", f"{title}, stacked by run. Last run: {last}.", svg_of(draw))


def _dates(axes: Any, points: Sequence[Row]) -> None:
    count = min(TICKS, len(points))
    places = sorted({round(n * (len(points) - 1) / max(count - 1, 1)) for n in range(count)})
    axes.set_xticks(places, [points[place_of].time[5:10] for place_of in places])
    axes.set_xlabel(" to ".join(dict.fromkeys((points[0].time[:4], points[-1].time[:4]))))
    axes.set_xlim(-0.6, max(len(points), 4) - 0.4)


def _legend(figure: Any) -> None:
    axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0, 1), ncols=3, fontsize=FONT_SIZE - 1.5, handlelength=0.9,
        handleheight=0.9, columnspacing=0.9, handletextpad=0.4, borderaxespad=0.2,
    )  # fmt: skip
