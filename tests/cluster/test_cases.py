"""A job of the matrix must pass its judge. "Not judged" is not a pass."""

import pytest
from rich.console import Console

from grpo.matrix.run import accept_command
from grpo.matrix.show.table import verdict_table
from grpo.matrix.slurm.cases import verdict_of
from grpo.matrix.slurm.script import RUN

# The plugin has deadlines for every wait.
pytestmark = pytest.mark.timeout(0)


def test_case(slurm_case, matrix, partition, record_property, request):
    outcome = slurm_case.wait()
    verdict = verdict_of(matrix, matrix.case(slurm_case.id), partition, outcome)
    record_property("verdict", verdict.sentence)
    Console(width=120, highlight=False, markup=False).print(verdict_table(verdict), outcome.sentence)
    held = matrix.quarantine.cases.get(slurm_case.id)
    if held is not None:
        request.applymarker(pytest.mark.xfail(reason=held.sentence, strict=False))
    if verdict.exit_code(release=request.config.getoption("--release")):
        end = f"\n{outcome.folder}/job.log ends:\n{outcome.tail()}" if verdict.failure in {"crash", "infra"} else ""
        judged = verdict.failure in {None, "regression"} and (outcome.folder / RUN).is_dir()
        runs = [each.folder / RUN for each in (*outcome.earlier, outcome)]
        accept = f"\nto accept, with further runs: {accept_command(runs)}" if judged else ""
        pytest.fail(f"{verdict.sentence}\n{outcome.sentence}{end}{accept}", pytrace=False)
