"""The client against executables that pretend to be Slurm's."""

import os

import pytest
from slurm_pytest_plugin import Case, Seen, SlurmClient, SlurmError, slurm
from slurm_pytest_plugin.request import Request

FAKE = """#!/bin/bash
printf '%s\\0' "$(basename "$0")" "$@" >>"$FAKES/calls"; printf '\\n' >>"$FAKES/calls"
name=$(basename "$0")-$1
[ -e "$FAKES/$name" ] || name=$(basename "$0")
cat "$FAKES/$name" 2>/dev/null
[ ! -e "$FAKES/$name.err" ] || { cat "$FAKES/$name.err" >&2; exit 1; }
"""


class Fakes:
    def __init__(self, folder):
        self.folder = folder

    def say(self, name, text):
        (self.folder / name).write_text(text)

    def fail(self, name, text):
        (self.folder / f"{name}.err").write_text(text)

    @property
    def calls(self):
        lines = (self.folder / "calls").read_bytes().split(b"\0\n")
        return [[part.decode() for part in line.split(b"\0")] for line in lines if line]

    def called(self, name):
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"):
        path = tmp_path / "bin" / name
        path.write_text(FAKE)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKES", str(tmp_path))
    return Fakes(tmp_path)


def request_of(tmp_path, case=None, **changes):
    return Request(case or Case("a", ""), tmp_path / "job.sh", "r1/a/1.0", **changes)


def test_a_job_is_submitted_with_its_tag_and_what_the_command_line_says(fakes, tmp_path):
    fakes.say("sbatch", "123;cluster\n")
    assert SlurmClient().submit(request_of(tmp_path, exclude=("n1", "n2"), account="acc", partition="gpu")) == "123"
    assert fakes.calls == [[
        "sbatch", "--parsable", "--comment=r1/a/1.0", "--account=acc", "--partition=gpu", "--exclude=n1,n2",
        str(tmp_path / "job.sh"),
    ]]  # fmt: skip


def test_what_a_case_says_of_account_and_partition_goes_before_the_command_line(tmp_path):
    case = Case("a", "", account="mine", partition="")
    assert slurm.command_of(request_of(tmp_path, case, account="acc", partition="gpu"))[3:-1] == ["--account=mine"]


def test_a_refusal_is_passed_on_in_slurms_words(fakes, tmp_path):
    fakes.fail("sbatch", "sbatch: error: Batch job submission failed: Invalid qos\n")
    with pytest.raises(SlurmError, match=r"^sbatch: sbatch: error: .*Invalid qos$"):
        SlurmClient().submit(request_of(tmp_path))


def test_one_question_for_all_jobs_and_none_of_those_that_go_on(fakes):
    fakes.say("squeue", "1|RUNNING|None|n1|0:10\n2|PENDING|Priority||0:00\n")
    assert SlurmClient().states(["1", "2"]) == {"1": Seen("RUNNING", "", "n1", 10), "2": Seen("PENDING", "Priority")}
    assert [call[0] for call in fakes.calls] == ["squeue"]
    assert "--jobs=1,2" in fakes.calls[0]
    assert "--states=all" in fakes.calls[0]
    assert SlurmClient().states([]) == {}


def test_an_end_is_asked_of_accounting_where_that_is_on(fakes):
    fakes.say("squeue", "1|COMPLETED|None|n1|0:10\n2|FAILED|NonZeroExitCode|n2|0:05\n3|RUNNING|None|n3|0:01\n")
    fakes.say("scontrol-show", "AccountingStorageType   = accounting_storage/slurmdbd\n")
    fakes.say("sacct", "1|COMPLETED|n1|30\n2|OUT_OF_MEMORY|n2|6\n")
    states = SlurmClient().states(["1", "2", "3"])
    assert states["1"] == Seen("COMPLETED", "", "n1", 30)
    assert states["2"].state == "OUT_OF_MEMORY"
    assert states["3"].state == "RUNNING"
    [call] = fakes.called("sacct")
    assert "--jobs=1,2" in call
    assert "--json" not in call


def test_accounting_that_lags_or_is_down_is_not_believed(fakes):
    fakes.say("squeue", "1|FAILED|None|n1|0:10\n")
    fakes.say("sacct", "1|RUNNING|n1|9\n")
    fakes.say("scontrol-show", "AccountingStorageType   = accounting_storage/slurmdbd\n")
    fakes.say("scontrol---oneliner", "JobId=1 JobState=TIMEOUT Reason=None RunTime=00:00:11 NodeList=n1\n")
    assert SlurmClient().states(["1"]) == {"1": Seen("TIMEOUT", "", "n1", 11)}
    fakes.fail("sacct", "sacct: error: slurm_persist_conn_open: failed\n")
    assert SlurmClient().states(["1"])["1"].state == "TIMEOUT"


@pytest.mark.parametrize("kind", ["accounting_storage/none", "(null)", ""])
def test_without_accounting_the_controller_is_asked(fakes, kind):
    fakes.say("squeue", "")
    fakes.say("scontrol-show", f"AccountingStorageType   = {kind}\n")
    fakes.say("scontrol---oneliner", "JobId=1 JobState=NODE_FAIL Reason=NodeDown RunTime=00:00:11 NodeList=n1\n")
    assert SlurmClient().states(["1"]) == {"1": Seen("NODE_FAIL", "NodeDown", "n1", 11)}
    assert fakes.called("sacct") == []


def test_a_job_that_nobody_knows_is_left_out(fakes):
    fakes.fail("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    fakes.fail("scontrol---oneliner", "slurm_load_jobs error: Invalid job id specified\n")
    fakes.say("scontrol-show", "")
    fakes.say("scontrol---oneliner", "")
    assert SlurmClient().states(["1"]) == {}


def test_a_controller_that_does_not_answer_is_an_error(fakes):
    fakes.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SlurmError, match="Unable to contact"):
        SlurmClient().states(["1"])
    fakes.say("scontrol-ping", "Slurmctld(primary) at here is DOWN\n")
    assert not SlurmClient().answers()
    fakes.say("scontrol-ping", "Slurmctld(primary) at here is UP\n")
    assert SlurmClient().answers()


def test_a_command_that_hangs_is_given_up(fakes, monkeypatch):
    monkeypatch.setattr(slurm, "COMMAND_SECONDS", 0.2)
    path = fakes.folder / "bin" / "squeue"
    path.write_text("#!/bin/bash\nexec sleep 60\n")
    with pytest.raises(SlurmError, match="squeue did not answer in 0 s"):
        SlurmClient().states(["1"])


def test_only_the_named_jobs_are_cancelled(fakes):
    SlurmClient().cancel(["1", "2"])
    SlurmClient().cancel([])
    assert fakes.calls == [["scancel", "1", "2"]]


def test_a_job_is_found_by_its_tag(fakes):
    fakes.say("squeue", "1|(null)\n2|r1/a/1.0\n3|r1/a/1.01\n")
    client = SlurmClient()
    assert client.find("r1/a/1.0") == "2"
    assert client.find("r2/a/1.0") is None


def test_nodes_that_the_cluster_holds_for_unfit(fakes):
    fakes.say("sinfo", "n2\nn2\n")
    fakes.say("scontrol-show", "n1\nn2\n")
    client = SlurmClient()
    assert client.faulty("n[1-2]") == ("n2",)
    assert client.expand("n[1-2]") == ("n1", "n2")
    assert client.expand("") == ()


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="no sbatch on this machine"):
        SlurmClient()
