"""What a rank of the PyTorch backend is made of in the parity matrix."""

from functools import cache

from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from tests.support.parity import config_of, model_of
from tests.support.policy import tiny_config


def pytorch_policy(cell):
    layout, config = cell["layout"], config_of(cell)
    settings = config.policy.dtensor_cfg
    parallel = _context(layout.tensor, layout.sequence_parallel, settings.cpu_offload)
    assert (parallel is None) == (layout.world == 1 and not settings.cpu_offload)
    assert parallel is None or (parallel.dp_size, parallel.tp_size) == (layout.data, layout.tensor)
    reference = model_of(cell) if config.loss_fn.reference_policy_kl_penalty else None
    return DTensorPolicy(model_of(cell), config, reference=reference, parallel=parallel)


@cache
def _context(tensor, sequence_parallel, cpu_offload):
    settings = {
        "tensor_parallel_size": tensor, "sequence_parallel": sequence_parallel, "cpu_offload": cpu_offload
    }  # fmt: skip
    return ParallelContext.create(tiny_config(policy={"dtensor_cfg": settings}).policy, "cpu")
