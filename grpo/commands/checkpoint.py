"""`grpo checkpoint`: look at, verify, keep, delete and export what runs have saved."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from grpo.checkpoint.manager import CheckpointManager
    from grpo.commands.checkpoint_folder import CheckpointFolder

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What runs have saved: look, verify, keep, export.")


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


FolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="a run directory, or a folder of checkpoints", show_default=False)
]
StepArgument = Annotated[str, typer.Argument(metavar="STEP", help="its number, or `latest`", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="print everything as JSON")]
_STATES = {".tmp": "unfinished", ".trash": "being deleted", ".replaced": "replaced"}


@app.command("ls")
def list_all(run_directory: FolderArgument, as_json: JsonOption = False) -> None:
    """List the checkpoints in the order of saving, the newest last. Sizes are compared, contents not read."""
    from grpo.commands.checkpoint_folder import find_folder

    folder = find_folder(run_directory)
    metric = folder.settings.metric_name
    rows = _rows(folder)
    if as_json:
        typer.echo(json.dumps({"directory": str(folder.directory), "checkpoints": rows}, indent=2))
        return
    table = Table("step", "saved", "size", metric, "pinned", "state", title=str(folder.directory), title_justify="left")
    for column in (0, 2, 3):
        table.columns[column].justify = "right"
    for row in rows:
        table.add_row(
            str(row["step"]),
            _when(row["saved_at"]),
            _size(row["bytes"]),
            _metric(row["metrics"].get(metric)),
            "yes" if row["pinned"] else "",
            row["state"],
        )
    _console().print(table)
    for row in rows:
        if row["problem"] is not None:
            typer.echo(f"step {row['step']}: {row['problem']}")


@app.command()
def verify(
    run_directory: FolderArgument,
    steps: Annotated[list[str] | None, typer.Argument(metavar="[STEP ...]", help="default: all")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read every file and compare its hash. Exit codes: 0 all are whole, 1 one is not, and which file of it."""
    from grpo.checkpoint.reading import list_checkpoints
    from grpo.commands.checkpoint_folder import find_folder
    from grpo.errors import CheckpointError

    folder = find_folder(run_directory)
    chosen = [folder.checkpoint(step) for step in steps] if steps else list_checkpoints(folder.directory)
    if not chosen:
        raise CheckpointError(f"{folder.directory} holds no complete checkpoint")
    results: list[dict[str, Any]] = []
    for info in chosen:
        began = time.perf_counter()
        problem = _problem(info.path)
        if problem is not None and not info.path.exists():
            continue  # retention of a run that is going on deleted it
        results.append({
            "step": info.step, "path": str(info.path), "bytes": info.bytes, "problem": problem,
            "seconds": time.perf_counter() - began,
        })  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"directory": str(folder.directory), "checkpoints": results}, indent=2))
    else:
        for result in results:
            read = f"{_size(result['bytes'])} in {result['seconds']:.1f} s"
            typer.echo(f"step {result['step']}: {result['problem'] or f'whole ({read})'}")
    if any(result["problem"] for result in results):
        raise typer.Exit(1)


@app.command()
def prune(
    run_directory: FolderArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and delete nothing")] = False,
    keep_latest: Annotated[int | None, typer.Option(min=1, help="instead of the run's own setting")] = None,
    keep_top_k: Annotated[int | None, typer.Option(min=0, help="instead of the run's own setting")] = None,
    keep_every_n_steps: Annotated[int | None, typer.Option(min=1, help="instead of the run's own setting")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="by which the best are known")] = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what the run's own retention would; pinned ones, and those that are being read, stay."""
    from grpo.commands.checkpoint_folder import find_folder

    folder = find_folder(run_directory)
    given = {
        "keep_latest": keep_latest, "keep_top_k": keep_top_k, "keep_every_n_steps": keep_every_n_steps,
        "metric_name": metric,
    }  # fmt: skip
    manager = _manager(folder, {name: value for name, value in given.items() if value is not None})
    wanted = [info.path for info in manager.superfluous()]
    removed, problems = ((), ()) if dry_run else manager.prune()
    kept = [path for path in wanted if path not in removed]
    if as_json:
        typer.echo(json.dumps({
            "directory": str(folder.directory), "removed": [str(path) for path in removed],
            ("would_remove" if dry_run else "left"): [str(path) for path in kept], "problems": list(problems),
        }, indent=2))  # fmt: skip
    else:
        for path in removed:
            typer.echo(f"removed {path}")
        for path in kept:
            typer.echo(f"would remove {path}" if dry_run else f"left {path}, which is being read")
        if not wanted:
            typer.echo("nothing to remove")
        for problem in problems:
            typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def export(
    run_directory: FolderArgument,
    step: StepArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="new or empty", show_default=False)],
    dtype: Annotated[Dtype, typer.Option("--dtype", help="of the weights; checkpoints have float32")] = Dtype.bfloat16,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FOLDER", help="default: the one that the run used")
    ] = None,
    max_shard_gb: Annotated[float, typer.Option(min=0.0, help="size of one safetensors file")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Write a Hugging Face folder that transformers and vLLM load: config.json, tokenizer, safetensors."""
    from grpo.checkpoint.export import export_checkpoint
    from grpo.commands.checkpoint_folder import find_folder

    found = find_folder(run_directory)
    done = export_checkpoint(
        found.checkpoint(step).path, folder, dtype=dtype.value, tokenizer=_tokenizer(found, tokenizer),
        max_shard_bytes=max(1, round(max_shard_gb * 1e9)),
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps({
            "folder": str(done.folder), "step": done.step, "weights": list(done.weights), "bytes": done.bytes,
        }, indent=2))  # fmt: skip
    else:
        files = "1 file" if len(done.weights) == 1 else f"{len(done.weights)} files"
        typer.echo(f"exported step {done.step} to {done.folder}: {_size(done.bytes)} of {dtype.value} in {files}")


@app.command("pin")
def pin_one(run_directory: FolderArgument, step: StepArgument, as_json: JsonOption = False) -> None:
    """Keep a checkpoint until it is unpinned, whatever retention says."""
    _set_pin(run_directory, step, pinned=True, as_json=as_json)


@app.command("unpin")
def unpin_one(run_directory: FolderArgument, step: StepArgument, as_json: JsonOption = False) -> None:
    """Leave a pinned checkpoint to retention again."""
    _set_pin(run_directory, step, pinned=False, as_json=as_json)


def _set_pin(run_directory: Path, step: str, *, pinned: bool, as_json: bool) -> None:
    from grpo.checkpoint.pins import pin, unpin
    from grpo.commands.checkpoint_folder import find_folder

    path = find_folder(run_directory).checkpoint(step).path
    changed = pin(path) if pinned else unpin(path)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "pinned": pinned, "changed": changed}, indent=2))
    else:
        typer.echo(f"{path} is {'' if changed else 'already '}{'pinned' if pinned else 'not pinned'}")


def _rows(folder: CheckpointFolder) -> list[dict[str, Any]]:
    from grpo.checkpoint.layout import looks_like_checkpoint, step_folders
    from grpo.checkpoint.reading import list_checkpoints

    infos = list_checkpoints(folder.directory)
    listed = {info.path for info in infos}
    rows = [
        {
            "step": info.step, "path": str(info.path), "saved_at": _saved_at(info.path), "bytes": info.bytes,
            "metrics": {name: value for name, value in info.metrics.items() if value == value},  # noqa: PLR0124 (NaN)
            "pinned": info.pinned, "state": "complete" if info.problem is None else "damaged", "problem": info.problem,
        }
        for info in infos
    ]  # fmt: skip
    rows += [
        {
            "step": other.step, "path": str(other.path), "saved_at": None, "bytes": None, "metrics": {},
            "pinned": False, "state": _STATES[other.suffix], "problem": None,
        }
        for other in step_folders(folder.directory)
        if other.suffix and other.path not in listed and looks_like_checkpoint(other.path)
    ]  # fmt: skip
    return rows


def _saved_at(path: Path) -> float | None:
    """Seconds since 1970, by the clock of the file system; None where retention was faster."""
    from grpo.checkpoint.layout import MANIFEST

    try:
        return (path / MANIFEST).stat().st_mtime
    except FileNotFoundError:
        return None


def _problem(path: Path) -> str | None:
    from grpo.checkpoint.reading import open_checkpoint
    from grpo.errors import CheckpointError

    try:
        with open_checkpoint(path, None, verify_hashes=True):
            return None
    except CheckpointError as error:
        return str(error)


def _manager(folder: CheckpointFolder, given: dict[str, Any]) -> CheckpointManager:
    from grpo.checkpoint.manager import CheckpointManager

    settings = folder.settings.model_copy(update=given)
    return CheckpointManager(
        folder.directory, keep_latest=settings.keep_latest, keep_top_k=settings.keep_top_k,
        metric_name=settings.metric_name, higher_is_better=settings.higher_is_better,
        keep_every_n_steps=settings.keep_every_n_steps, fingerprint={},
    )  # fmt: skip


def _tokenizer(folder: CheckpointFolder, given: Path | None) -> Path:
    from grpo.errors import CheckpointError
    from grpo.models.locate import locate_model

    if given is not None:
        if not given.is_dir():
            raise CheckpointError(f"--tokenizer {given}: no such folder")
        return given
    policy = folder.config.get("policy", {})
    name = policy.get("tokenizer", {}).get("name") or policy.get("model_name")
    if name is None:
        raise CheckpointError(
            f"{folder.directory} does not say which tokenizer its run used (there is no config.yaml beside it): "
            "name its folder with --tokenizer"
        )
    return locate_model(name, policy.get("model_revision") if name == policy.get("model_name") else None)


def _when(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _size(size: int | None) -> str:
    if size is None:
        return ""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def _metric(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _console() -> Console:
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
