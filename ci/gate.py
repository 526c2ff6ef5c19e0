"""What the gate does besides tests: selects, renders every job script, and looks whether written files are fresh."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.emit import stale
from ci.stacks import stale_stacks
from ci.verdict import SELECTION
from grpo.errors import GrpoError
from grpo.matrix.editors import FOLDER, schema_texts
from grpo.matrix.load import Matrix, load_matrix
from grpo.matrix.select import changed_files, select, shards
from grpo.matrix.slurm.cases import job_of
from grpo.matrix.slurm.submit import write_dry

ROOT = Path(__file__).resolve().parents[1]
BASH_SECONDS = 30


def select_shard(matrix: Matrix, base: str, shard: tuple[int, int], report: Path) -> list[str]:
    """The functional cases of this shard (number from 1, of so many), told on stderr with their reasons.

    Writes `selected.json` into the folder of the shard's report, by which the gate knows that none was left out.
    """
    number, count = shard
    changed = changed_files(ROOT, base) if base else None
    chosen = [
        one
        for one in select(matrix, ROOT, changed)
        if matrix.all[one.case].layer == "functional" and matrix.all[one.case].cadence == "pr"
    ]
    for one in chosen:
        print(f"selected {one.case}: {one.reason}", file=sys.stderr)
    mine = shards([matrix.all[one.case] for one in chosen], count)[number - 1]
    report.mkdir(parents=True, exist_ok=True)
    content = {"selected": [one.case for one in chosen], "cases": mine, "shard": number, "of": count}
    (report / SELECTION).write_text(json.dumps(content), encoding="utf-8")
    return mine


def dry_runs(matrix: Matrix, folder: Path) -> Iterator[str]:
    """Write the job script of every case on every partition, as `--dry-run` does, and let bash read it."""
    for case in matrix.cases.values():
        for partition in case.partitions:
            place = folder / f"{case.id}-{partition}"
            try:
                write_dry(job_of(matrix, case, partition, environ=os.environ, working_directory=ROOT), place)
            except GrpoError as error:
                yield f"{case.id} on {partition}: {error}"
                continue
            for script in place.rglob("*.sh"):
                read = subprocess.run(
                    ["bash", "-n", str(script)], capture_output=True, text=True, timeout=BASH_SECONDS, check=False
                )
                if read.returncode != 0:
                    yield f"{case.id} on {partition}: bash cannot read its job script: {read.stderr.strip()}"


def stale_schemas(matrix: Matrix) -> list[str]:
    """JSON Schemas that are not what the code says."""
    folder = matrix.folder / FOLDER
    texts = schema_texts()
    found = [f"{name}.json" for name, text in texts.items() if _text(folder / f"{name}.json") != text]
    return found + [path.name for path in folder.glob("*.json") if path.stem not in texts]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def checks() -> list[str]:
    """Everything that is not as it should be."""
    matrix = load_matrix(ROOT / "matrices")
    found = [f"{path} is stale: nox -s emit" for path in stale(ROOT, matrix)]
    found += [f"matrices/{FOLDER}/{name} is stale: nox -s matrix -- schema" for name in stale_schemas(matrix)]
    found += [f"matrices/stacks/{name}.yaml is stale: nox -s emit" for name in stale_stacks(ROOT, matrix)]
    with tempfile.TemporaryDirectory() as folder:
        found += dry_runs(matrix, Path(folder))
    return found


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NUMBER/COUNT, for example 1/3")
    return int(number), int(count)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("checks", help="files that are written are fresh, and every job script can be rendered")
    selecting = commands.add_parser("select", help="print the functional cases that a change needs, as JSON")
    selecting.add_argument("--base", default="", help="branch or commit; nothing, or an unknown one: everything")
    selecting.add_argument("--shard", type=_shard, default=(1, 1), metavar="NUMBER/COUNT")
    selecting.add_argument("--report", type=Path, required=True, help="folder for selected.json")
    options = parser.parse_args(arguments)
    if options.command == "select":
        matrix = load_matrix(ROOT / "matrices")
        print(json.dumps(select_shard(matrix, options.base, options.shard, options.report)))
        return 0
    found = checks()
    for problem in found:
        print(problem, file=sys.stderr)
    print("checks: written files are fresh and every job script renders" if not found else f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
