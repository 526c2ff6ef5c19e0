import pytest

from grpo.matrix.judge.machine import check_canary
from tests.support.matrix import CPU_PARTITION, PARTITION, canary, case, evidence, measured, verdict, with_rates

RATES = {
    "bf16_matmul_tflops": 800.0,
    "device_copy_gb_per_s": 2000.0,
    "host_to_device_gb_per_s": 54.0,
    "device_to_host_gb_per_s": 54.0,
    "all_reduce_node_gb_per_s": 340.0,
    "all_reduce_pair_gb_per_s": 45.0,
}


def test_a_machine_at_its_rates_is_good_down_to_97_per_cent():
    partition = with_rates(**RATES)
    assert check_canary(canary(hosts=("a", "b")), partition).health == "good"
    assert check_canary(canary(hosts=("a", "b"), matmul=0.97 * 800), partition).health == "good"


@pytest.mark.parametrize("name", [name for name in RATES if name != "all_reduce_pair_gb_per_s"])
def test_any_measure_of_one_node_below_is_bad_and_the_node_is_excluded(name):
    seen = canary(hosts=("a", "b", "c"))
    holder = seen["nodes"][1] if name == "all_reduce_node_gb_per_s" else seen["nodes"][1]["gpus"][5]
    holder[name] *= 0.969
    machine = check_canary(seen, with_rates(**RATES))
    assert (machine.health, machine.exclude) == ("bad", ("b",))
    assert machine.problems[0].startswith("b")
    assert "97 % of the partition's" in machine.problems[0]


def test_the_node_that_every_slow_pair_has_is_excluded():
    seen = canary(hosts=("a", "b", "c", "d"))
    for pair in seen["pairs"]:
        if "c" in pair["hosts"]:
            pair["all_reduce_pair_gb_per_s"] = 30.0
    machine = check_canary(seen, with_rates(**RATES))
    assert (machine.health, machine.exclude) == ("bad", ("c",))
    assert len(machine.problems) == 3


def test_of_one_slow_pair_neither_is_known_to_be_good():
    seen = canary(hosts=("a", "b", "c"))
    seen["pairs"][0]["all_reduce_pair_gb_per_s"] = 30.0
    assert check_canary(seen, with_rates(**RATES)).exclude == ("a", "b")


def test_sockets_where_infiniband_is_declared():
    partition = with_rates(hcas=["mlx5_0"])
    assert check_canary(canary(transport="socket"), partition).health == "bad"
    assert check_canary(canary(transport="ib"), partition).health == "good"
    assert check_canary(canary(transport="unknown"), partition).health == "good"
    assert check_canary(canary(transport="socket"), with_rates(**RATES)).health == "good"


def test_a_canary_of_other_nodes_says_nothing_of_these():
    good = check_canary(canary(hosts=("a", "b")), with_rates(**RATES), ["a.site.net", "b"])
    assert good.health == "good"
    machine = check_canary(canary(hosts=("a", "b")), with_rates(**RATES), ["a", "c"])
    assert (machine.health, machine.problems) == ("unknown", ("the canary did not measure c",))
    result = verdict(evidence(canary=canary(hosts=("node1",))), reference=measured(), partition=with_rates(**RATES))
    assert result.outcome == "not judged"
    assert "did not measure node0" in result.sentence


def test_no_canary_or_half_of_one_is_not_a_good_machine():
    machine = check_canary({}, with_rates(**RATES))
    assert machine.health == "unknown"
    assert "no canary" in machine.problems[0]
    seen = canary()
    del seen["nodes"][0]["gpus"][0]["bf16_matmul_tflops"]
    assert check_canary(seen, with_rates(**RATES)).health == "good"  # the others stand for it
    for gpu in seen["nodes"][0]["gpus"][1:]:
        del gpu["bf16_matmul_tflops"]
    machine = check_canary(seen, with_rates(**RATES))
    assert (machine.health, machine.problems) == ("unknown", ("the canary did not measure matrix product",))


def test_nan_is_bad():
    assert check_canary(canary(matmul=float("nan")), with_rates(**RATES)).health == "bad"


def test_without_gpus_or_rates_it_only_records():
    assert check_canary(canary(matmul=1.0), CPU_PARTITION).health == "unknown"
    assert check_canary(canary(matmul=1.0), PARTITION).health == "unknown"
    assert verdict(evidence(canary=canary(matmul=1.0)), reference=measured()).outcome == "pass"


def test_figures_of_an_unknown_machine_are_not_judged():
    result = verdict(reference=measured(), partition=with_rates(**RATES))
    assert (result.outcome, result.failure) == ("not judged", None)
    assert "no canary" in result.sentence
    seen = evidence(canary=canary())
    assert verdict(seen, reference=measured(), partition=with_rates(**RATES)).outcome == "pass"


def alone(seen, partition=PARTITION, **changes):
    """The verdict of a case that is nothing but its canary."""
    the_case = case(trains=False, nodes=2, checks={"against_reference": []})
    return verdict(evidence([], canary=seen, nodes=seen.get("nodes", []), **changes), the_case, None, partition)


def test_a_case_may_be_nothing_but_its_canary():
    good, slow = canary(hosts=("a", "b")), canary(hosts=("a", "b"), matmul=700.0)
    assert alone(good, with_rates(**RATES)).outcome == "pass"
    assert alone(slow, with_rates(**RATES)).findings[0].failure == "infra"
    assert alone(good).outcome == "not judged"  # there are no rates to hold it against
    assert alone(good, CPU_PARTITION).outcome == "pass"
    for seen in (canary(hosts=("a",)), {}):
        assert alone(seen, with_rates(**RATES)).failure == "correctness"
    assert alone(canary(hosts=("a",)), CPU_PARTITION).outcome == "pass"  # two nodes on one machine
    assert alone(good, with_rates(**RATES), state="not started").outcome != "pass"
