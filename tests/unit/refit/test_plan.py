import pytest

from grpo.refit.channel import Machine
from grpo.refit.errors import RefitError
from grpo.refit.plan import Place, Plan, plan_refit

HERE, THERE = Machine("boot", "net"), Machine("other", "net")


def test_each_engine_rank_is_sent_to_by_the_policy_rank_on_its_gpu():
    places = [Place(HERE, "A"), Place(HERE, "B"), Place(THERE, "C")]
    plan = plan_refit(places, [places[2], places[0], places[1]], colocated=True)
    assert plan == Plan("shared", (2, 0, 1))
    assert [plan.receivers(rank) for rank in range(3)] == [[1], [2], [0]]


def test_on_a_cpu_one_policy_rank_of_each_machine_sends():
    places = [Place(HERE, "cpu"), Place(HERE, "cpu"), Place(THERE, "cpu")]
    plan = plan_refit(places, [*places, places[0]], colocated=True)
    assert plan.source_of == (0, 0, 2, 0)
    assert plan.receivers(0) == [0, 1, 3]
    assert [plan.number(engine) for engine in range(4)] == [0, 1, 0, 2]


def test_devices_of_their_own_are_reached_by_a_broadcast_of_the_first_rank():
    assert plan_refit([Place(HERE, "A")], [Place(HERE, "B"), Place(THERE, "C")], colocated=False) == Plan(
        "broadcast", (0, 0)
    )


def test_where_processes_cannot_share_memory_it_is_broadcast():
    assert plan_refit([Place(None, "cpu")], [Place(None, "cpu")], colocated=True).transport == "broadcast"


@pytest.mark.parametrize("place", [Place(HERE, "B"), Place(THERE, "A"), Place(None, "A")])
def test_an_engine_rank_that_does_not_share_a_policy_ranks_device_is_refused(place):
    with pytest.raises(
        RefitError, match=rf"engine rank 1 is on device {place.device} of .*, where the policy has no rank"
    ):
        plan_refit([Place(HERE, "A")], [Place(HERE, "A"), place], colocated=True)


def test_a_refusal_tells_containers_of_one_machine_apart():
    with pytest.raises(RefitError, match=r"name spaces net:\[2\], where .* \(it is on device cpu of .*net:\[1\]\)"):
        plan_refit(
            [Place(Machine("boot", "net:[1]"), "cpu")], [Place(Machine("boot", "net:[2]"), "cpu")], colocated=True
        )


def test_this_process_knows_where_it_is():
    assert Place.here(on_gpu=False) == Place.here(on_gpu=False)
