"""What the terminal shows while a run goes on. Failures are the command line's to print, not this module's."""

import collections
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo.telemetry import formatting as fmt
from grpo.telemetry.timers import PHASES

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

REFRESHES_A_SECOND = 4
PLAIN_SECONDS = 10.0
_RECENT_STEPS = 20
_SHOWN_SHARE = 0.01
_COLORS = {"generation": "blue", "policy_training": "yellow", "logprobs": "cyan", "validation": "green"}


class StepPace(Protocol):
    """Holds the steps of a run against figures of its own."""

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take the metrics of a finished step."""

    def words(self) -> str:
        """The steps so far in one line; "" before the first."""


class RunConsole:
    """A header, a live bar, a final summary; plain lines where the output is no terminal; nothing with `quiet`.

    `step` only stores the numbers: a thread draws REFRESHES_A_SECOND times a second, whatever the speed of the steps.
    In plain mode a line is written for the first step, the last one, and otherwise every `plain_seconds`.
    """

    def __init__(
        self,
        *,
        max_steps: int,
        first_step: int = 1,
        chance: float | None = None,
        pace: StepPace | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        plain_seconds: float = PLAIN_SECONDS,
    ) -> None:
        self._console = Console(file=stream if stream is not None else sys.stdout, quiet=quiet, highlight=False)
        self._max_steps = max_steps
        self._step = first_step - 1
        self._chance = chance
        self._pace = pace
        self._clock = clock
        self._started = clock()
        self._plain_seconds = plain_seconds
        self._last_plain: float | None = None
        self._values: Mapping[str, float | None] = {}
        self._accuracy: float | None = None
        self._recent: collections.deque[Mapping[str, float | None]] = collections.deque(maxlen=_RECENT_STEPS)
        self._live: Live | None = None
        self._quiet = quiet

    def header(self, rows: Mapping[str, str]) -> None:
        """Print what is about to run: recipe, model, parameters, device, batch, run directory."""
        if not self._console.is_terminal:
            for label, value in rows.items():
                self._line(f"{label}: {value}")
            return
        table = Table.grid(padding=(0, 2))
        for label, value in rows.items():
            table.add_row(Text(label, style="dim"), Text(value))
        self._console.print(Panel.fit(table, title="grpo", title_align="left", border_style="dim", padding=(0, 1)))

    def start(self) -> None:
        """Begin to show progress."""
        self._started = self._clock()
        if self._console.is_terminal and not self._quiet:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_A_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def step(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take the metrics of a finished step, named as in metrics.jsonl. Costs microseconds; a plain line more."""
        self._step = step
        self._values = values
        self._recent.append(values)
        if self._pace is not None:
            self._pace.add(step, values)
        accuracy = values.get("validation/accuracy")
        self._accuracy = self._accuracy if accuracy is None else accuracy
        if self._live is not None or self._quiet:
            return
        now = self._clock()
        due = self._last_plain is None or now - self._last_plain >= self._plain_seconds
        if due or step >= self._max_steps:
            self._last_plain = now
            parts = [f"step {step}/{self._max_steps}", *self._figures(), ", ".join(self._shares())]
            self._line("  ".join([*parts, *self._against_reference()]))

    def message(self, text: str) -> None:
        """A line of its own above the bar: a checkpoint, a warning, a sample."""
        self._line(text)

    def finish(self, lines: Sequence[str] = ()) -> None:
        """Stop the bar and print the summary."""
        self.close()
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """Stop the bar and leave the terminal as it was; prints nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", error: "BaseException | None", traceback: "TracebackType | None"
    ) -> None:
        self.close()

    def _line(self, text: str) -> None:
        # Text: square brackets in it are no markup. A log's lines are not folded at a width that nobody chose.
        self._console.print(Text(printable(text)), soft_wrap=not self._console.is_terminal)

    def _figures(self) -> list[str]:
        values = self._values
        parts = []
        if (reward := values.get("train/reward")) is not None:
            parts.append(f"reward {reward:.3f}")
        if self._accuracy is not None:
            chance = "" if self._chance is None else f" (chance {self._chance:.2f})"
            parts.append(f"accuracy {self._accuracy:.3f}{chance}")
        if (rate := values.get("performance/tokens_per_second_per_gpu")) is not None:
            parts.append(f"{fmt.number(round(rate))} tokens/s/GPU")
        if (pace := self._seconds_a_step()) is not None:
            parts.append(f"{fmt.seconds(pace)}/step")
            parts.append(f"{fmt.duration(pace * max(self._max_steps - self._step, 0))} left")
        return parts

    def _seconds_a_step(self) -> float | None:
        """Mean seconds of the recent steps: validation and checkpoints are part of the time that is left."""
        totals = [total for values in self._recent if (total := values.get("timing/total")) is not None]
        return statistics.fmean(totals) if totals else None

    def _against_reference(self) -> list[str]:
        words = "" if self._pace is None else self._pace.words()
        return [f"median step {words}"] if words else []

    def _shares(self) -> list[str]:
        return [f"{name.replace('_', ' ')} {100 * share:.0f} %" for name, share in self._recent_shares()]

    def _recent_shares(self) -> list[tuple[str, float]]:
        """Phases of the recent steps by share of their time, the largest first."""
        recent = list(self._recent)
        total = sum(values.get("timing/total") or 0.0 for values in recent)
        if total <= 0:
            return []
        shares = [
            (name, sum(values.get(f"timing/{name}") or 0.0 for values in recent) / total) for name in (*PHASES, "other")
        ]
        return sorted(((name, share) for name, share in shares if share >= _SHOWN_SHARE), key=lambda pair: -pair[1])

    def _render(self) -> RenderableType:
        done, elapsed = self._step, fmt.duration(self._clock() - self._started)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"step {done}/{self._max_steps}", style="bold"),
            ProgressBar(total=self._max_steps, completed=done, width=32),
            Text(f"{100 * done / self._max_steps:3.0f} %"),
            Text(f"{elapsed} elapsed", style="dim"),
        )
        figures = Text("  ".join(self._figures()) or "the first step is under way", no_wrap=True, overflow="ellipsis")
        shares = Text(no_wrap=True, overflow="ellipsis", style="dim")
        for position, (name, share) in enumerate(self._recent_shares()):
            shares.append(" · " if position else "")
            shares.append(f"{name.replace('_', ' ')} {100 * share:.0f} %", style=_COLORS.get(name, ""))
        against = [Text(words, no_wrap=True, overflow="ellipsis") for words in self._against_reference()]
        return Group(bar, figures, shares, *against)


def printable(text: str) -> str:
    """The text without control characters: what a model writes must not steer the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
