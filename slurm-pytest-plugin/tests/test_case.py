import pytest
from slurm_pytest_plugin import Case, CaseError
from slurm_pytest_plugin.case import seconds_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "a b"}, "an id has letters"),
        ({"id": "-a"}, "an id has letters"),
        ({"time_limit": "10"}, "time_limit = '10' is not hours:minutes:seconds"),
        ({"expected": "00:99:00"}, "expected = '00:99:00'"),
        ({"nodes": 0}, "nodes = 0: at least 1"),
        ({"gpus_per_node": -1}, "gpus_per_node = -1"),
        ({"infra_retries": -1}, "infra_retries"),
        ({"options": ["--qos=a --account=b"]}, "not one option of sbatch"),
        ({"options": ["--qos=a\n#SBATCH --account=b"]}, "not one option of sbatch"),
        ({"options": ["--comment=#x"]}, "not one option"),
        ({"options": ["qos"]}, "not one option"),
        ({"gpu_options": ["--gres gpu:8"]}, "not one option"),
    ],
)
def test_what_sbatch_would_misread_is_refused(changes, message):
    with pytest.raises(CaseError) as raised:
        Case(**{"id": "a", "script": "", **changes})
    assert message in str(raised.value)


def test_seconds_and_gpus():
    assert seconds_of("100:01:02") == 360062
    case = Case("a", "", nodes=3, gpus_per_node=8, time_limit="00:10:00")
    assert (case.gpus, case.limit_seconds) == (24, 600)
