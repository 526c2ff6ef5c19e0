import pytest
from slurm_pytest_plugin.states import FINAL, HOPELESS, Seen, duration, parse_sacct, parse_scontrol, parse_squeue


def test_lines_of_squeue():
    text = (
        "7|RUNNING|None|gpu[1-2]|1-02:03:04\n8|PENDING|(Resources)||0:00\n9|PENDING|launch failed requeued held||0:00\n"
    )
    assert parse_squeue(text) == {
        "7": Seen("RUNNING", "", "gpu[1-2]", 86400 + 2 * 3600 + 3 * 60 + 4),
        "8": Seen("PENDING", "Resources"),
        "9": Seen("PENDING", "launch failed requeued held"),
    }
    assert parse_squeue("slurm_load_jobs error\n\n") == {}


def test_sacct_has_a_line_for_each_run_of_a_requeued_job():
    text = "7|NODE_FAIL|n[1-2]|30\n7|COMPLETED|n[3-4]|40\n8|CANCELLED by 0|None assigned|0\n9|RUNNING|n1|x\n"
    assert parse_sacct(text) == {
        "7": Seen("COMPLETED", "", "n[3-4]", 70.0),
        "8": Seen("CANCELLED"),
        "9": Seen("RUNNING", "", "n1"),
    }


def test_the_line_of_scontrol():
    text = (
        "JobId=7 JobName=a JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 "
        "RunTime=00:01:02 TimeLimit=00:10:00 NodeList=n1 BatchHost=n1 Comment=run/JobState=X/1.0\n"
        "JobId=8 JobState=PENDING Reason=None RunTime=00:00:00 NodeList=(null) ReqNodeList=n9\n"
    )
    assert parse_scontrol(text) == {"7": Seen("FAILED", "NonZeroExitCode", "n1", 62.0), "8": Seen("PENDING")}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:09", 9), ("12:00", 720), ("100:00:01", 360001), ("INVALID", 0), ("", 0), ("2-00:00:00", 172800)],
)
def test_durations(text, seconds):
    assert duration(text) == seconds


def test_what_is_final_and_what_is_hopeless():
    assert all(Seen(state).final for state in FINAL)
    assert not any(Seen(state).final for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"))
    assert all(Seen("PENDING", reason).hopeless for reason in HOPELESS)
    assert not any(Seen("PENDING", reason).hopeless for reason in ("Priority", "Resources", "BeginTime", "Dependency"))
    assert not Seen("RUNNING", "PartitionNodeLimit").hopeless
