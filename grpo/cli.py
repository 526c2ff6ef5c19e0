"""The command line. Every command imports what it needs itself, so that the light ones answer at once."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grpo.commands.accept import accept, rebase
from grpo.commands.canary import canary
from grpo.commands.checkpoint import app as checkpoint_app
from grpo.commands.compare import compare
from grpo.commands.diagnose import diagnose
from grpo.commands.doctor import doctor
from grpo.commands.judge import judge
from grpo.commands.matrix import app as matrix_app
from grpo.commands.status import status
from grpo.errors import ConfigError, GrpoError
from grpo.planning.resident import Resident

if TYPE_CHECKING:
    from grpo.checkpoint.signals import StopRequest
    from grpo.config import ResolvedConfig
    from grpo.telemetry.console import StepPace
    from grpo.trainer.progress import Outcome
    from grpo.trainer.run import FinishedRun

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Train language models by GRPO, and know that the trainer is right.",
)  # fmt: skip

_LAST_SECONDS = 10.0
_WRITING = "checkpoint-write", "checkpoint-hash", "checkpoint-flush"  # names of threads

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="RECIPE [KEY=VALUE ...]", help="a shipped recipe or a YAML file, and overrides"),
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="the recipe, where it is not the first argument")
]


@app.command()
def train(  # noqa: PLR0917 (typer's options have no order)
    arguments: Arguments = None,
    config: ConfigOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="set an earlier run in the run directory aside, and begin anew")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print the last line only")] = False,
    require_accuracy: Annotated[
        float | None, typer.Option(min=0, max=1, help="exit 1 if the last validation accuracy is below this")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="of a case: its step and what grew are shown with every line")
    ] = None,
    reference_warmup: Annotated[
        int | None, typer.Option(min=0, metavar="STEPS", help="that are left out of that, as the case says; default 5")
    ] = None,
) -> None:
    """Train. A run directory that has a checkpoint is resumed.

    SIGTERM, SIGUSR1, Ctrl-C and checkpointing.checkpoint_must_save_by save and stop. Exit codes: 0 done; 85 stopped and
    saved, start the same command again; 130 stopped by Ctrl-C; 1 failed, or --require-accuracy not reached; 2 something
    that you can mend, which one line names. 75 is left to the machinery around.
    """
    from grpo.checkpoint.signals import StopRequest

    recipe, overrides = _recipe(arguments, config)
    pace = _pace(reference, reference_warmup)
    with StopRequest(at_once=True, started=_start_of_process()) as stop:
        try:
            finished = _train(recipe, overrides, stop, fresh=fresh, quiet=quiet, pace=pace)
        except KeyboardInterrupt as interrupted:
            name = stop.raised(interrupted)
            if name is None:
                raise
            stop.ignore()
            typer.echo(f"stopped by {name} before the first step; nothing was trained", err=True)
            raise typer.Exit(_exit_code(name, saved=False, steps=0)) from interrupted
        stop.ignore()
    outcome = finished.outcome
    if outcome.stopped_by is not None:
        typer.echo(f"stopped by {outcome.stopped_by} {_what_is_saved(outcome)}")
    typer.echo(f"report: {finished.report}")
    typer.echo(finished.summary)
    if outcome.stopped_by is not None:
        raise typer.Exit(_exit_code(outcome.stopped_by, saved=outcome.saved, steps=outcome.steps))
    if require_accuracy is not None and (outcome.accuracy is None or outcome.accuracy < require_accuracy):
        typer.echo(f"not learned: --require-accuracy {require_accuracy}", err=True)
        raise typer.Exit(1)


@app.command()
def config(
    arguments: Arguments = None,
    config: ConfigOption = None,
    set_by: Annotated[bool, typer.Option("--set-by", help="say for each key where its value came from")] = False,
) -> None:
    """Print the whole resolved configuration as YAML."""
    resolved = _resolve(*_recipe(arguments, config))
    typer.echo(resolved.to_set_by() if set_by else resolved.to_yaml(), nl=False)


@app.command()
def fetch(
    arguments: Arguments = None,
    config: ConfigOption = None,
    update: Annotated[bool, typer.Option("--update", help="look up again what branches and tags point to")] = False,
) -> None:
    """Store the model, tokenizer and data of a recipe, at pinned revisions, on a machine with network."""
    from grpo.hub.fetch import fetch as fetch_items
    from grpo.hub.plan import plan_fetch

    items = plan_fetch(_resolve(*_recipe(arguments, config)).config)
    if not items:
        typer.echo("nothing to fetch: everything that this recipe needs is on this machine or ships with the package")
    fetch_items(items, typer.echo, update=update)


@app.command()
def plan(  # noqa: PLR0917 (typer's options have no order)
    arguments: Arguments = None,
    config: ConfigOption = None,
    partition: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="the machines: a shipped name, or a YAML file of rates")
    ] = "h100-80g",
    completion_tokens: Annotated[
        float | None,
        typer.Option(help="mean length of a completion; default: a quarter of the most that may be generated"),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="length of a prompt")] = 128,
    length_shape: Annotated[
        float, typer.Option(help="tail of the lengths: 1 exponential, above 1 lighter, below 1 heavier")
    ] = 1.0,
    resident: Annotated[
        Resident,
        typer.Option(help="what stays on the GPUs while a colocated engine generates, instead of what the keys say"),
    ] = Resident.CONFIGURED,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Say what a recipe takes of memory and time, for any number of GPUs, before it is run. Exit 2: it does not fit."""
    from grpo.planning.command import run_plan
    from grpo.planning.plan import Assumptions

    recipe, overrides = _recipe(arguments, config)
    run_plan(
        _resolve(recipe, overrides), recipe, overrides, partition_name=partition, as_json=as_json,
        assumptions=Assumptions(prompt_tokens, completion_tokens, length_shape, resident), console=Console(),
    )  # fmt: skip


@app.command()
def recipes(
    models: Annotated[
        bool, typer.Option("--models", help="list the models that ship with the package instead")
    ] = False,
) -> None:
    """List the shipped recipes."""
    if models:
        from grpo.models.shipped import shipped_names

        for name in shipped_names():
            typer.echo(name)
        return
    from grpo.recipes import shipped_recipes

    for name in shipped_recipes():
        typer.echo(name)


@app.command()
def report(
    run_directory: Annotated[Path, typer.Argument(help="of a run, also one that is still running")],
    output: Annotated[Path | None, typer.Option(help="folder to write to; default: the run directory")] = None,
) -> None:
    """Draw a run as HTML with pictures, and as Markdown."""
    from grpo.telemetry.report import write_report

    for path in write_report(run_directory, output):
        typer.echo(path)


app.command("judge")(judge)
app.command("status")(status)
app.command("compare")(compare)
app.command("canary")(canary)
app.command("doctor")(doctor)
app.command("diagnose")(diagnose)
app.command("accept")(accept)
app.command("rebase")(rebase)
app.add_typer(matrix_app, name="matrix")
app.add_typer(checkpoint_app, name="checkpoint")


def _train(
    recipe: str, overrides: list[str], stop: StopRequest, *, fresh: bool, quiet: bool, pace: StepPace | None
) -> FinishedRun:
    from grpo.hub.offline import go_offline

    go_offline()
    resolved = _resolve(recipe, overrides)
    from grpo.hub.plan import require_stored
    from grpo.trainer.run import train as run_training

    require_stored(resolved.config, recipe, overrides)
    return run_training(resolved, fresh=fresh, quiet=quiet, command=sys.argv, stop=stop, pace=pace)


def _pace(reference: Path | None, warmup: int | None) -> StepPace | None:
    if reference is None:
        if warmup is not None:
            raise ConfigError("--reference-warmup is for --reference FILE, which is not given")
        return None
    from grpo.matrix.show.pace import read_pace
    from grpo.matrix.status import WARMUP_STEPS

    return read_pace(reference, WARMUP_STEPS if warmup is None else warmup)


def _what_is_saved(outcome: Outcome) -> str:
    if outcome.saved:
        return "and saved; the same command without --fresh resumes"
    if outcome.steps == 0:
        return "before the first step was done; there is nothing to save"
    return "without a checkpoint: checkpointing.enabled=false"


def _exit_code(stopped_by: str, *, saved: bool, steps: int) -> int:
    from grpo.trainer.stopping import exit_code_of

    return exit_code_of(stopped_by, saved=saved, steps=steps)


def _start_of_process() -> float:
    """The instant of `time.monotonic` at which this process began: importing torch counts in its time limit."""
    import psutil

    return time.monotonic() - (time.time() - psutil.Process().create_time())


def _recipe(arguments: list[str] | None, option: str | None) -> tuple[str, list[str]]:
    """The recipe, which is `--config` or the first argument, and the overrides."""
    given = list(arguments or [])
    if option is not None:
        return option, given
    if not given or "=" in given[0] or given[0].startswith("~"):
        raise ConfigError("which recipe? Name one before the overrides; `grpo recipes` lists those that ship")
    return given[0], given[1:]


def _resolve(recipe: str, overrides: list[str]) -> ResolvedConfig:
    from grpo.config import load_config

    resolved = load_config(recipe, overrides)
    for note in resolved.notes:
        typer.echo(f"note: {note}", err=True)
    return resolved


def main() -> None:
    """Run the command line; an error that the user can mend is printed without a traceback."""
    # Before torch is loaded. Threads that wait spinning make a step many times slower where others run too; those that
    # sleep at once make it slower where nothing else runs. Some microseconds cost neither.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        app()
    except GrpoError as error:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"error: {error}")
        sys.exit(error.exit_code)
    finally:
        _bound_the_wait_for_saves()


def _bound_the_wait_for_saves() -> None:
    """Python waits at its end for the threads of pools, also for one whose disk does not answer: not for ever here."""
    if any(thread.name.startswith(_WRITING) for thread in threading.enumerate()):
        faulthandler.dump_traceback_later(_LAST_SECONDS, exit=True)
