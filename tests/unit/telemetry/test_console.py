import io
import random

import pytest

from grpo.telemetry.console import RunConsole, printable
from tests.support.synthetic_run import synthetic_metrics


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


def metrics(step):
    return synthetic_metrics(random.Random(step), step)


def test_a_log_has_a_line_now_and_then_and_no_control_characters():
    now = [0.0]
    stream = io.StringIO()
    with RunConsole(max_steps=50, chance=0.19, stream=stream, clock=lambda: now[0], plain_seconds=10) as console:
        console.header({"recipe": "tiny", "run directory": "runs/[tiny]"})
        console.start()
        for step in range(1, 51):
            console.step(step, metrics(step))
            now[0] += 1.0
        console.message("a [bold]message[/bold]")
        console.finish(["accuracy 0.95"])
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["recipe: tiny", "run directory: runs/[tiny]"]
    assert [line.split()[1] for line in lines if line.startswith("step")] == [
        "1/50", "11/50", "21/50", "31/50", "41/50", "50/50"
    ]  # fmt: skip
    assert lines[-2:] == ["a [bold]message[/bold]", "accuracy 0.95"]
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert all(line == line.rstrip() for line in lines)


def test_a_line_tells_reward_accuracy_speed_shares_and_time_left():
    stream = io.StringIO()
    console = RunConsole(max_steps=10, chance=0.2, stream=stream)
    values = {"train/reward": 0.5, "validation/accuracy": 0.25, "performance/tokens_per_second_per_gpu": 13820.4}
    console.step(1, {**values, "timing/total": 20.0, "timing/generation": 15.0, "timing/policy_training": 5.0})
    assert stream.getvalue() == (
        "step 1/10  reward 0.500  accuracy 0.250 (chance 0.20)  13,820 tokens/s/GPU  20 s/step  3:00 left  "
        "generation 75 %, policy training 25 %\n"
    )


def test_a_step_without_metrics_is_a_line_too():
    stream = io.StringIO()
    RunConsole(max_steps=1, stream=stream).step(1, {})
    assert stream.getvalue().split() == ["step", "1/1"]


def test_a_terminal_shows_a_bar_and_is_left_as_it_was():
    stream = Terminal()
    console = RunConsole(max_steps=40, chance=0.19, stream=stream)
    console.header({"recipe": "tiny"})
    console.start()
    for step in range(1, 31):
        console.step(step, metrics(step))
    console.finish(["the end"])
    text = stream.getvalue()
    assert "step 30/40" in text
    assert "generation" in text
    assert "━" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.endswith("the end\n")


def test_a_failure_restores_the_terminal_and_prints_nothing_of_its_own():
    stream = Terminal()
    with pytest.raises(ValueError, match="boom"), RunConsole(max_steps=4, stream=stream) as console:  # noqa: PT012
        console.start()
        raise ValueError("boom")
    assert "\x1b[?25h" in stream.getvalue()
    assert "boom" not in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_prints_nothing(stream):
    with RunConsole(max_steps=2, quiet=True, stream=stream) as console:
        console.header({"recipe": "tiny"})
        console.start()
        console.step(2, metrics(2))
        console.finish(["done"])
    assert stream.getvalue() == ""


def test_a_sample_cannot_steer_the_terminal():
    assert printable("ok\n\x1b]0;title\x07é\u202e") == "ok\n\ufffd]0;title\ufffdé\ufffd"


class FixedPace:
    def __init__(self):
        self.steps = []

    def add(self, step, values):
        self.steps.append((step, values["timing/total"]))

    def words(self):
        return "2 s (1, +100 %): refit +1" if self.steps else ""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_the_steps_against_a_reference_are_on_the_line(stream):
    out, pace = stream(), FixedPace()
    with RunConsole(max_steps=2, pace=pace, stream=out, plain_seconds=0) as console:
        console.start()
        console.step(1, metrics(1))
        console.step(2, metrics(2))
        if stream is Terminal:
            rendered = io.StringIO()
            from rich.console import Console

            Console(file=rendered, width=120).print(console._render())
            assert rendered.getvalue().splitlines()[-1] == "median step 2 s (1, +100 %): refit +1"
        else:
            lines = out.getvalue().splitlines()
            assert [line.endswith("  median step 2 s (1, +100 %): refit +1") for line in lines] == [True, True]
    assert [step for step, _ in pace.steps] == [1, 2]
