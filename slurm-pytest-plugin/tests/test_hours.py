import pytest
from slurm_pytest_plugin import Case
from slurm_pytest_plugin.hours import Hours, hours_of, next_hours, total


def test_expected_and_worst():
    case = Case("a", "", nodes=8, gpus_per_node=8, time_limit="02:00:00", expected="01:30:00")
    assert hours_of(case) == Hours(96.0, 384.0)  # three attempts at worst
    assert hours_of(Case("a", "", time_limit="00:30:00", infra_retries=0)) == Hours(0.5, 0.5)
    again = Case("a", "", gpus_per_node=1, time_limit="01:00:00", infra_retries=1, max_restarts=2)
    assert hours_of(again) == Hours(1.0, 6.0)
    thrice = Case("a", "", gpus_per_node=1, time_limit="01:00:00", infra_retries=2, max_runs=3)
    assert hours_of(thrice) == Hours(1.0, 5.0)
    assert next_hours(case, 60.0) == 96.0
    assert next_hours(case, 7200.0) == 128.0
    assert next_hours(Case("a", ""), 7200.0) == 0.0


def test_the_sum_keeps_gpu_hours_and_node_hours_apart():
    gpu, node = total(
        [Case("a", "", gpus_per_node=2), Case("b", "", nodes=3, infra_retries=0), Case("c", "", gpus_per_node=1)]
    )
    assert (gpu.expected, gpu.worst) == pytest.approx((3.0, 9.0))
    assert (node.expected, node.worst) == pytest.approx((3.0, 3.0))
