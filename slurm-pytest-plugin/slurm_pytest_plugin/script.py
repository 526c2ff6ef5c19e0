"""The text of a job script: a pure function of the case and its place."""

import re
import shlex

from slurm_pytest_plugin.case import Case, CaseError
from slurm_pytest_plugin.place import LOG, SCRIPT, Place

_PATH = re.compile(r"[A-Za-z0-9_./+@=,:-]+")
# Writes result.json when the script ends, however it ends, and passes signals on to what it runs.
_WRAPPER = """\
rm -f result.json
slurm_case_stopped=null
slurm_case_result() {{
  printf '{{"schema_version": 1, "case": "%s", "stage": "done", "exit_code": %s, "stopped_by": %s}}\\n' \\
    {case} "$1" "$slurm_case_stopped" >result.json.tmp
  mv result.json.tmp result.json
}}
slurm_case_signal() {{
  slurm_case_stopped="\\"$1\\""
  kill -s "$1" "$slurm_case_child" 2>/dev/null
}}
trap 'slurm_case_signal USR1' USR1
trap 'slurm_case_signal TERM' TERM
bash ./{body} &
slurm_case_child=$!
# A signal ends `wait` with a status of its own; asking again is safe, since bash keeps that of a child it has reaped.
while :; do
  wait "$slurm_case_child"
  slurm_case_code=$?
  kill -0 "$slurm_case_child" 2>/dev/null || break
done
wait "$slurm_case_child"
slurm_case_code=$?
slurm_case_result "$slurm_case_code"
exit "$slurm_case_code"
"""
BODY = "body.sh"


def render(case: Case, place: Place) -> dict[str, str]:
    """The files of a job by name: its script, and what that runs where the case does not write its own result.

    Raises CaseError for a folder that sbatch's options cannot hold.
    """
    if not _PATH.fullmatch(str(place.folder)):
        raise CaseError(
            f"the job's folder {str(place.folder)!r}: sbatch's options take letters, digits and _./+@=,:- only"
        )
    body = case.script if isinstance(case.script, str) else case.script(place)
    header = "".join(f"#SBATCH {option}\n" for option in _options(case, place))
    if case.writes_result:
        return {SCRIPT: f"#!/bin/bash\n{header}{body}"}
    wrapper = _WRAPPER.format(case=shlex.quote(case.id), body=BODY)
    return {SCRIPT: f"#!/bin/bash\n{header}{wrapper}", BODY: f"{body}\n"}


def _options(case: Case, place: Place) -> list[str]:
    options = [
        f"--job-name={case.id}",
        f"--nodes={case.nodes}",
        f"--time={case.time_limit}",
        f"--chdir={place.folder}",
        f"--output={place.folder / LOG}",
        "--open-mode=append",
        "--requeue" if case.may_restart else "--no-requeue",
    ]
    if 0 < 2 * case.notice_seconds < case.limit_seconds:
        options.append(f"--signal=B:USR1@{case.notice_seconds}")
    if case.gpu_options is not None:
        options += case.gpu_options
    elif case.gpus_per_node:
        options.append(f"--gpus-per-node={case.gpus_per_node}")
    if case.clean_environment:
        # NIL, not NONE: that one would load the user's login environment.
        options.append("--export=NIL")
    return [*options, *case.options]
