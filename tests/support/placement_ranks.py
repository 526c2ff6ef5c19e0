"""What each rank of a real world does in tests/functional/placement/test_ranks.py, and gives back."""

import copy

import torch

from grpo.placement.resources import Residence, Resource
from grpo.workers.offload.memory import EmptiedStorages
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from tests.support.ledger import HOST, PRETEND_GPU, Ledger, MixedResidenceError, adopt_policy, misplace
from tests.support.policy import random_batch, tiny_config, tiny_model

COLOCATED = {"offload_optimizer": True, "offload_parameters": True}
CONTEXTS = {}


def make(cell, *, device="cpu", colocated=COLOCATED):
    tensor = cell["tensor"]
    config = tiny_config(
        policy={
            "dtensor_cfg": {"tensor_parallel_size": tensor}, "precision": cell.get("precision", "float32"),
            "generation": {"colocated": colocated}, "offload_reference": bool(colocated.get("offload_optimizer")),
        },
        loss_fn={"reference_policy_kl_penalty": 0.1},
    )  # fmt: skip
    if tensor not in CONTEXTS:
        CONTEXTS[tensor] = ParallelContext.create(config.policy, "cpu")
    model = tiny_model(num_key_value_heads=4)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return DTensorPolicy(model, config, reference=copy.deepcopy(model), device=device, parallel=CONTEXTS[tensor])


def away_and_back(policy, emptied):
    """Everything to the host at once and back; bytes that the policy held meanwhile, where it is `emptied`."""
    away = {
        Resource.GRADIENTS: Residence.ABSENT, Resource.OPTIMIZER_STATE: Residence.CPU,
        Resource.REFERENCE_PARAMETERS: Residence.CPU, Resource.POLICY_PARAMETERS: Residence.CPU,
    }  # fmt: skip
    for resource, residence in away.items():
        policy.move(resource, residence)
    models = (policy._masters, policy._reference.model)
    tensors = [each.to_local() for model in models for each in model.parameters()]
    held = sum(each.untyped_storage().nbytes() for each in tensors)
    for resource in away:
        policy.move(resource, Residence.GPU)
    return held if emptied else 0


def results(policy, move):
    batches = [random_batch(seed=seed) for seed in range(2)]
    found = []
    for batch in batches:
        held = move(policy)
        found += [policy.logprobs(batch), policy.reference_logprobs(batch)]
        policy.train(batch)
        held += move(policy)
        found += [each.clone() for _, each in policy.export_weights()]
        assert held == 0, f"{held} bytes stayed"
    return found


def offloaded(cell):
    """Whether a policy whose storages are emptied between all calls gives what one gives that stays where it is."""
    moved = make(cell)
    moved.resources.memory = EmptiedStorages(torch.device("cpu"))
    ours = results(moved, lambda policy: away_and_back(policy, emptied=True))
    theirs = results(make(cell), lambda _: 0)
    return len(ours), all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def misplaced(cell):
    """What is said of a resource that was moved to the host behind placement's back."""
    resource, batch = Resource(cell["resource"]), random_batch()
    with Ledger() as ledger:
        policy = make(cell, device=str(PRETEND_GPU), colocated={})
        adopt_policy(ledger, policy)
        policy.reference_logprobs(batch)
        policy.train(batch)
        misplace(ledger, policy, resource, HOST)
        try:
            if resource == Resource.REFERENCE_PARAMETERS:
                policy.reference_logprobs(batch)
            else:
                policy.train(batch)
        except MixedResidenceError as error:
            return str(error)
    return None


def run(cell):
    return offloaded(cell) if "resource" not in cell else misplaced(cell)
