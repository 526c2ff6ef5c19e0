"""The plugin in a pytest of its own, on this machine or against a pretended sbatch."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree as ET

import pytest

CONFTEST = """
from slurm_pytest_plugin import Case
def pytest_slurm_cases():
    yield Case("good", "echo hello; echo 7 >figure", time_limit="00:01:00")
    yield Case("bad", "echo it broke; exit 3", time_limit="00:01:00")
    yield Case("good-too", "exit 0", time_limit="00:01:00")
"""
TEST = """
def test_case(slurm_case):
    assert slurm_case.check().passed

def test_nothing_else():
    pass
"""
SBATCH = """#!/bin/bash
echo "$@" >>"$FAKES/sbatch.calls"
[ ! -e "$FAKES/refuse" ] || { echo "Requested node configuration is not available" >&2; exit 1; }
for script; do :; done
(cd "$(dirname "$script")" && bash "$script" >job.log 2>&1)
wc -l <"$FAKES/sbatch.calls"
"""
SQUEUE = """#!/bin/bash
for each; do case $each in --jobs=*) jobs=${each#--jobs=};; esac; done
state=$(cat "$FAKES/state" 2>/dev/null || echo COMPLETED)
for job in ${jobs//,/ }; do echo "$job|$state|None|n1|0:07"; done
"""
SCONTROL = """#!/bin/bash
case "$*" in
  ping) echo "is UP" ;;
  --oneliner*) state=$(cat "$FAKES/state" 2>/dev/null || echo COMPLETED)
    echo "JobId=$4 JobState=$state RunTime=00:00:07 NodeList=n1" ;;
esac
"""


@pytest.fixture
def project(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    return pytester


@pytest.fixture
def slurm(project, monkeypatch):
    """A pretended Slurm that runs a job while it is submitted."""
    bin_ = project.mkdir("bin")
    for name, text in {
        "sbatch": SBATCH,
        "squeue": SQUEUE,
        "scontrol": SCONTROL,
        "scancel": '#!/bin/bash\necho "$@" >>"$FAKES/scancel.calls"\n',
    }.items():
        path = bin_ / name
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKES", str(project.path))
    return project


def run(project, *arguments):
    return project.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", "--poll=0.05", *arguments)


def calls(project, name="sbatch"):
    path = project.path / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def test_each_test_waits_for_its_own_job(project):
    result = run(project, "--executor=local", "-v")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*good: job local-1: submitted*",
            "*good: passed: job local-1; COMPLETED*",
            "*bad: failed (crash): job local-2; FAILED; exit code 3*",
            "*it broke*",
        ]
    )


def test_a_case_is_named_exactly(slurm):
    result = run(slurm, "--case=good")
    result.assert_outcomes(passed=2)
    assert len(calls(slurm)) == 1
    assert calls(slurm)[0].endswith("/good/attempt-1/job.sh")


def test_an_unknown_case_is_an_error_that_names_the_nearest_and_submits_nothing(slurm):
    result = run(slurm, "--case=good", "--case=god")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --case god: there is no such case; the nearest are good*"])
    assert calls(slurm) == []


def test_cases_that_cannot_be_are_an_error(slurm):
    slurm.makeconftest(
        """
        from slurm_pytest_plugin import Case
        def pytest_slurm_cases():
            yield Case('a b', '')
        """
    )
    result = run(slurm)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: case 'a b': an id has letters*"])


def test_all_are_submitted_before_the_first_test_runs(slurm):
    slurm.makepyfile(
        test_order="""
        import os
        def test_first():
            assert len(open(os.environ['FAKES'] + '/sbatch.calls').readlines()) == 3
        """
    )
    run(slurm, "test_order.py", "test_all_are_submitted_before_the_first_test_runs.py").assert_outcomes(
        passed=4, failed=1
    )


@pytest.mark.parametrize("option", ["--collect-only", "--dry-run", "--fixtures", "--fixtures-per-test"])
def test_nothing_is_submitted(slurm, option):
    result = run(slurm, option)
    assert result.ret == 0
    assert calls(slurm) == []
    if option == "--dry-run":
        result.stdout.fnmatch_lines(["*hours expected*", "*good *0.02 node*0.05 node*", "*all *0.05 node*0.15 node*"])
        assert len(list(slurm.path.glob("slurm-runs/*/good/attempt-1/job.sh"))) == 1


def test_tests_that_cannot_be_collected_submit_nothing(slurm):
    slurm.makepyfile(test_broken="import nothing_such")
    assert run(slurm).ret == pytest.ExitCode.INTERRUPTED
    assert calls(slurm) == []


def test_without_a_selected_case_there_is_no_skip(slurm):
    result = run(slurm, "-k", "nothing_else")
    result.assert_outcomes(passed=1, deselected=3)
    assert calls(slurm) == []
    slurm.makeconftest("def pytest_slurm_cases():\n    return []\n")
    run(slurm).assert_outcomes(passed=1, deselected=1)


def test_account_partition_and_run_id_reach_sbatch(slurm):
    run(slurm, "--account=acc", "--partition=gpu", "--run-id=mine", "--case=good").assert_outcomes(passed=2)
    assert calls(slurm)[0].startswith("--parsable --comment=mine/good/1.0 --account=acc --partition=gpu ")


def test_a_refused_job_fails_its_test(slurm):
    (slurm.path / "refuse").touch()
    result = run(slurm, "--case=good")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*good: failed (queue): no job*Requested node configuration is not available*"])


def test_junit_has_what_became_of_the_job(slurm):
    run(slurm, "--case=bad", "--junitxml=out.xml", "--run-id=mine")
    case = ET.parse(slurm.path / "out.xml").find(".//testcase[@name='test_case[bad]']")  # noqa: S314 - our own
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert properties["failure_class"] == "crash"
    assert properties["slurm_jobs"] == "1"
    assert properties["slurm_nodes"] == "n1"
    assert properties["slurm_run_id"] == "mine"
    assert properties["seconds_run"] == "7"
    assert properties["job_folder"].endswith("/mine/bad/attempt-1")


def test_the_jobs_of_an_earlier_pytest_are_waited_for_by_its_run_id(slurm):
    run(slurm, "--run-id=mine", "--case=good").assert_outcomes(passed=2)
    result = run(slurm, "--run-id=mine", "--case=good", "--case=good-too")
    result.assert_outcomes(passed=3)
    assert len(calls(slurm)) == 2
    result.stdout.fnmatch_lines(["*good: job 1: found again*"])


@pytest.mark.parametrize("name", ["a/b", "../x", " "])
def test_a_run_id_is_the_name_of_a_folder(project, name):
    result = run(project, f"--run-id={name}", "--executor=local")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --run-id *not a name of a folder"])


def test_a_slurm_that_does_not_answer_is_none(slurm):
    (slurm.path / "bin" / "scontrol").write_text("#!/bin/bash\necho no configuration source >&2; exit 1\n")
    run(slurm, "--case=good").assert_outcomes(passed=2)
    assert calls(slurm) == []
    result = run(slurm, "--case=good", "--executor=slurm")
    result.stderr.fnmatch_lines(["ERROR: --executor slurm: no Slurm answers here (*no configuration source)"])


def test_an_earlier_run_is_tested_again_without_a_job(slurm):
    run(slurm, "--run-id=mine", "--case=good", "--case=bad")
    submitted = len(calls(slurm))
    result = run(slurm, "--from-run=slurm-runs/mine", "--case=good", "--case=bad")
    result.assert_outcomes(passed=2, failed=1)
    assert len(calls(slurm)) == submitted
    run(slurm, "--from-run=slurm-runs/mine/good/attempt-1", "--case=good").assert_outcomes(passed=2)
    assert len(calls(slurm)) == submitted


def test_without_slurm_and_gpus_it_says_what_is_missing(project, monkeypatch):
    project.makeconftest(
        """
        from slurm_pytest_plugin import Case
        def pytest_slurm_cases():
            yield Case('big', '', nodes=8, gpus_per_node=8)
        """
    )
    bin_ = project.mkdir("empty")
    monkeypatch.setenv("PATH", str(bin_))
    result = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: there is no Slurm here (no sbatch), and big needs 8 nodes*(64 GPUs)*--dry-run*"]
    )
    result = run(project, "--executor=slurm")
    result.stderr.fnmatch_lines(["ERROR: --executor slurm: there is no Slurm here (no sbatch)"])
    assert run(project, "--dry-run").ret == 0


def test_workers_of_xdist_are_refused(project):
    pytest.importorskip("xdist")
    result = run(project, "--executor=local", "-n1")
    result.stdout.fnmatch_lines(["*run them without -n*"])


def test_ctrl_c_cancels_the_jobs_of_this_run_and_no_others(slurm):
    (slurm.path / "state").write_text("RUNNING\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--poll=0.05",
        "--run-id=mine",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    process = subprocess.Popen(command, cwd=slurm.path, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "RUNNING" in line:
            break
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert calls(slurm, "scancel") == ["1 2 3"]


def test_on_a_terminal_a_table_is_shown(project):
    project.makeconftest(
        """
        from slurm_pytest_plugin import Case
        def pytest_slurm_cases():
            yield Case('good', 'sleep 0.5', time_limit='00:01:00', progress=lambda folder: 'step 12')
        """
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "--executor=local", "--poll=0.05", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, cwd=project.path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # so a terminal says that its other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    for word in (b"progress", b"RUNNING", b"step 12", b"2 passed"):
        assert word in shown


def test_what_cannot_be_cancelled_is_said(slurm):
    (slurm.path / "state").write_text("RUNNING\n")
    (slurm.path / "bin" / "scancel").write_text("#!/bin/bash\necho no controller >&2; exit 1\n")
    slurm.makepyfile(test_a="def test_first():\n    assert False\n")
    result = run(slurm, "-x", "--run-id=mine", "test_a.py", "test_what_cannot_be_cancelled_is_said.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["jobs of this run may still be there (scancel: no controller): --run-id mine finds them"]
    )


def test_the_end_of_the_session_cancels_what_nobody_waits_for(slurm):
    (slurm.path / "state").write_text("RUNNING\n")
    slurm.makepyfile(test_a="def test_first():\n    assert False\n")
    run(slurm, "-x", "test_a.py", "test_the_end_of_the_session_cancels_what_nobody_waits_for.py").assert_outcomes(
        failed=1
    )
    assert calls(slurm, "scancel") == ["1 2 3"]


def test_its_names_are_not_those_of_pytest_slurm(slurm):
    assert "\ntest cases as Slurm jobs:\n" in slurm.runpytest_subprocess("--help").stdout.str()
    fixtures = slurm.runpytest_subprocess("--fixtures", "-q").stdout.str()
    taken = {"slurm", "slurm_ssh", "slurm_raw", "slurm_services", "slurm_python", "slurm_project", "slurm_compose_file"}
    ours = {line.split()[0] for line in fixtures.splitlines() if "slurm_pytest_plugin/plugin.py" in line}
    assert ours == {"slurm_case"}
    assert not ours & taken


def test_a_case_that_asks_for_more_runs_is_tested_by_all_of_them_also_afterwards(project):
    project.makeconftest(
        """
        from slurm_pytest_plugin import Case, More
        def more(outcomes):
            return More("one is no figure") if len(outcomes) < 3 else None
        def pytest_slurm_cases():
            yield Case("thrice", "echo ${PWD##*-} >figure", time_limit="00:01:00", more=more, max_runs=3)
        """
    )
    project.makepyfile(
        """
        def test_case(slurm_case):
            outcome = slurm_case.check()
            runs = [*outcome.earlier, outcome]
            assert [run.folder.joinpath("figure").read_text().strip() for run in runs] == ["1", "2", "3"]
        """
    )
    result = run(project, "--executor=local", "--run-id=mine")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*thrice: one is no figure: again*", "*thrice: passed: *3 attempts (one is no figure)*"]
    )
    run(project, "--from-run=slurm-runs/mine").assert_outcomes(passed=1)


def test_the_gpu_hours_of_a_run_have_a_limit(slurm):
    slurm.makeconftest(
        """
        from slurm_pytest_plugin import Case, More
        def pytest_slurm_cases():
            yield Case("again", "true", gpus_per_node=8, time_limit="01:00:00", max_runs=9, more=lambda _: More("more"))
        """
    )
    result = run(slurm, "--max-gpu-hours=8.01", "test_the_gpu_hours_of_a_run_have_a_limit.py")
    assert len(calls(slurm)) == 1
    result.stdout.fnmatch_lines(
        ["*again: passed*more: not run again, since that takes 8.00 GPU-hours, and 7.99 are left of 8.01*"]
    )
