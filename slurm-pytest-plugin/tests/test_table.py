from pathlib import Path

from rich.console import Console
from slurm_pytest_plugin import Case, Seen
from slurm_pytest_plugin.job import Job
from slurm_pytest_plugin.table import clock, dry_table, run_table


def text_of(table):
    console = Console(width=160, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    with console.file:
        console.print(table)
        return console.export_text()


def test_the_live_table_has_state_nodes_time_and_progress():
    running = Job(Case("a", "", progress=lambda folder: f"step 12 in {folder.name}"), Path("/r/a"), job_id="7")
    running.seen = Seen("RUNNING", "", "gpu[1-2]", 3723)
    pending = Job(Case("b", ""), Path("/r/b"), job_id="8", seen=Seen("PENDING", "Priority"))
    again = Job(Case("c", ""), Path("/r/c"), attempt=2, why="outside the band", exclude=("n3",), avoid=("n1", "n3"))
    text = text_of(run_table("r1", [running, pending, again]))
    for part in (
        "run r1",
        "RUNNING",
        "gpu[1-2]",
        "1:02:03",
        "step 12 in attempt-1",
        "PENDING (Priority)",
        "not submitted",
        "2: outside the band, without n3, n1",
    ):
        assert part in text


def test_the_dry_table_sums_the_hours():
    cases = [
        Case("a", "", gpus_per_node=8, time_limit="01:00:00"),
        Case("b", "", gpus_per_node=8, time_limit="02:00:00"),
    ]
    text = text_of(dry_table(cases, {"a": Path("/r/a/job.sh"), "b": Path("/r/b/job.sh")}))
    for part in ("nothing is submitted", "8.00 GPU", "24.00 GPU", "16.00 GPU", "/r/b/job.sh", "72.00 GPU"):
        assert part in text
    assert clock(59.9) == "0:00:59"
