import json
import signal
import subprocess
from pathlib import Path

import pytest
from slurm_pytest_plugin import Case, CaseError, Place, read_result
from slurm_pytest_plugin.run import write_script
from slurm_pytest_plugin.script import render


def place(folder, attempt=1):
    return Place(folder, "slurm", attempt)


def test_the_header_says_what_the_case_needs(tmp_path):
    case = Case(
        "a", script=lambda at: f"echo {at.attempt} {at.executor}", nodes=2, gpus_per_node=8, time_limit="00:10:00",
        options=["--exclusive", "--qos=high"], max_restarts=1, clean_environment=True,
    )  # fmt: skip
    files = render(case, place(tmp_path, 3))
    header = files["job.sh"].splitlines()[:13]
    assert header == [
        "#!/bin/bash", "#SBATCH --job-name=a", "#SBATCH --nodes=2", "#SBATCH --time=00:10:00",
        f"#SBATCH --chdir={tmp_path}", f"#SBATCH --output={tmp_path}/job.log", "#SBATCH --open-mode=append",
        "#SBATCH --requeue", "#SBATCH --signal=B:USR1@120", "#SBATCH --gpus-per-node=8", "#SBATCH --export=NIL",
        "#SBATCH --exclusive", "#SBATCH --qos=high",
    ]  # fmt: skip
    assert files["body.sh"] == "echo 3 slurm\n"


def test_a_site_may_spell_its_gpus_otherwise_and_short_jobs_get_no_notice(tmp_path):
    text = render(
        Case("a", "", gpus_per_node=8, gpu_options=["--gres=gpu:h100:8"], time_limit="00:02:00"), place(tmp_path)
    )
    assert "#SBATCH --gres=gpu:h100:8\n" in text["job.sh"]
    assert "--gpus-per-node" not in text["job.sh"]
    assert "--signal" not in text["job.sh"]
    assert "#SBATCH --no-requeue\n" in text["job.sh"]


def test_a_script_that_writes_its_own_result_is_left_as_it_is(tmp_path):
    files = render(Case("a", "echo mine\n", writes_result=True), place(tmp_path))
    assert list(files) == ["job.sh"]
    assert files["job.sh"].endswith("\necho mine\n")
    assert "result.json" not in files["job.sh"]


@pytest.mark.parametrize("folder", ["/a b", "/a%j", "/a\n#SBATCH --x", "/ä"])
def test_folders_that_sbatch_would_misread(folder):
    with pytest.raises(CaseError, match="take letters, digits"):
        render(Case("a", ""), Place(Path(folder), "slurm", 1))


def run(tmp_path, body, **more):
    script = write_script(Case("a", body, **more), place(tmp_path / "job"))
    return subprocess.Popen(["bash", script], cwd=script.parent, stdout=subprocess.PIPE, text=True), script.parent


@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_exit_code_of_the_script_is_the_result(tmp_path, code):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "result.json").write_text('{"exit_code": 99}')  # of an earlier run of the same job
    process, folder = run(tmp_path, f"echo 'it''s \"$HOME\"'; exit {code}")
    output, _ = process.communicate(timeout=30)
    assert output == 'its "$HOME"\n'
    assert process.returncode == code
    assert read_result(folder).exit_code == code
    assert json.loads((folder / "result.json").read_text())["case"] == "a"


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_a_signal_is_passed_on_and_the_script_waited_for(tmp_path, name):
    body = f"trap 'echo saved; exit 85' {name}; echo ready; while :; do read -t 0.05 <> <(:); done"
    process, folder = run(tmp_path, body)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[f"SIG{name}"])
    output, _ = process.communicate(timeout=30)
    assert output == "saved\n"
    assert process.returncode == 85
    result = read_result(folder)
    assert (result.exit_code, result.stopped_by) == (85, name)
