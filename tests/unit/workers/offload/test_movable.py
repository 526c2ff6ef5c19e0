import pytest
import torch

from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.placement.table import Sharing, colocated, separate
from grpo.workers.offload.memory import EmptiedStorages
from grpo.workers.offload.movable import PlacedPolicy, Resources

CPU = torch.device("cpu")
EVERYTHING = colocated(Sharing(*[True] * 4, 2), reference=True)
PARAMETERS, GRADIENTS, OPTIMIZER = Resource.POLICY_PARAMETERS, Resource.GRADIENTS, Resource.OPTIMIZER_STATE


class Policy(PlacedPolicy):
    """Parameters; moments, made late as an optimizer makes them, and the parameters as their own masters."""

    def __init__(self, plan=EVERYTHING):
        self.parameters, self.moments, self.gradients = [torch.ones(4)], [], [torch.ones(4)]
        self.resources = Resources(
            {
                PARAMETERS: lambda: self.parameters, GRADIENTS: lambda: self.gradients,
                OPTIMIZER: lambda: [*self.parameters, *self.moments],
            }, plan, CPU,
        )  # fmt: skip
        self.resources.memory = EmptiedStorages(CPU)


def held(tensors):
    return [each.untyped_storage().nbytes() for each in tensors]


def test_a_resource_is_where_it_was_moved():
    policy = Policy()
    policy.moments.append(torch.full((4,), 3.0))
    assert policy.move(OPTIMIZER, Residence.CPU) == 16
    assert (held(policy.moments), held(policy.parameters)) == ([0], [16])
    assert policy.residences() == {
        PARAMETERS: "gpu", GRADIENTS: "gpu", OPTIMIZER: "cpu", Resource.REFERENCE_PARAMETERS: "absent"
    }  # fmt: skip
    assert policy.move(OPTIMIZER, Residence.CPU) == 0
    assert policy.move(OPTIMIZER, Residence.GPU) == 16
    assert policy.moments[0].tolist() == [3.0] * 4


def test_gradients_are_freed_and_made_again():
    policy = Policy()
    policy.move(GRADIENTS, Residence.ABSENT)
    assert held(policy.gradients) == [0]
    policy.move(GRADIENTS, Residence.GPU)
    assert held(policy.gradients) == [16]


def test_only_what_has_changed_or_grown_is_copied_again():
    policy = Policy()
    policy.moments.append(torch.zeros(4))

    def away_and_back():
        copied = policy.move(OPTIMIZER, Residence.CPU)
        policy.move(OPTIMIZER, Residence.GPU)
        return copied

    assert [away_and_back(), away_and_back()] == [16, 0]
    policy.moments[0].fill_(5.0)
    policy.resources.changed(PARAMETERS, OPTIMIZER)
    assert [away_and_back(), away_and_back()] == [16, 0]
    assert policy.moments[0].tolist() == [5.0] * 4
    policy.moments.append(torch.ones(2))
    assert away_and_back() == 24


def test_a_move_that_the_plan_never_makes_is_refused_by_the_policy_itself():
    policy = Policy(separate(reference=False))
    with pytest.raises(PlacementError, match=(
        "optimizer_state is on gpu and cannot be moved to cpu: the separate plan of this run has it in every phase on "
        "gpu"
    )):  # fmt: skip
        policy.move(OPTIMIZER, Residence.CPU)
    with pytest.raises(PlacementError, match="gradients is on gpu and cannot be moved to cpu"):
        Policy().move(GRADIENTS, Residence.CPU)


def test_what_a_call_needs_must_be_on_the_gpu():
    policy = Policy()
    policy.resources.need("train", PARAMETERS, OPTIMIZER)
    policy.move(PARAMETERS, Residence.CPU)
    with pytest.raises(PlacementError, match="train needs policy_parameters on gpu, but it is on cpu"):
        policy.resources.need("train", PARAMETERS, OPTIMIZER)
    with pytest.raises(PlacementError, match="score needs reference_parameters on gpu, but it is on absent"):
        policy.resources.need("score", Resource.REFERENCE_PARAMETERS)
