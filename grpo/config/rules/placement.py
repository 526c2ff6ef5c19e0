"""Conflicts of where things are: what a colocated run alone can move."""

from collections.abc import Iterator

from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_COLOCATED = "policy.generation.colocated"
_OPTIMIZER = "policy.offload_optimizer_for_logprob", f"{_COLOCATED}.offload_optimizer"
_REFERENCE = "policy.offload_reference"
_SLEEP = f"{_COLOCATED}.sleep_level"


def moves(config: Config) -> dict[str, object]:
    """The keys that ask for something to be moved, with their values."""
    policy, colocated = config.policy, config.policy.generation.colocated
    asked = {
        _OPTIMIZER[0]: policy.offload_optimizer_for_logprob,
        _REFERENCE: policy.offload_reference,
        _OPTIMIZER[1]: colocated.offload_optimizer,
        f"{_COLOCATED}.offload_parameters": colocated.offload_parameters,
        _SLEEP: colocated.sleep_level,
    }
    return {key: value for key, value in asked.items() if value}


def separate_moves_nothing(config: Config) -> Iterator[Conflict]:
    if config.policy.generation.colocated.enabled:
        return
    for key, value in moves(config).items():
        yield Conflict(
            (key, f"{_COLOCATED}.enabled"),
            "with an engine on GPUs of its own the policy stays on its GPUs in every phase, and so does the engine; "
            f"{0 if isinstance(value, int) and not isinstance(value, bool) else 'false'}, or set enabled to true",
        )


def offloaded_twice(config: Config) -> Iterator[Conflict]:
    dtensor = config.policy.dtensor_cfg
    if not (dtensor.enabled and dtensor.cpu_offload):
        return
    for key in moves(config):
        if key != _SLEEP:
            yield Conflict(
                ("policy.dtensor_cfg.cpu_offload", key),
                "parameters, optimizer and reference are on the CPU in every phase already; false",
            )


def reference(config: Config) -> Iterator[Conflict]:
    if config.policy.offload_reference and config.loss_fn.reference_policy_kl_penalty == 0:
        yield Conflict(
            (_REFERENCE, "loss_fn.reference_policy_kl_penalty"), "without a KL term there is no reference; false"
        )


RULES: tuple[Rule, ...] = (separate_moves_nothing, offloaded_twice, reference)


def notes(config: Config) -> Iterator[str]:
    """What is allowed and probably not meant."""
    if all(moves(config).get(key) for key in _OPTIMIZER):
        yield f"{_OPTIMIZER[0]} has no effect: with {_OPTIMIZER[1]} the state is away until the update anyway"
    if config.cluster.gpus_per_node:
        return
    for key in moves(config):
        yield f"{key} moves nothing in a run on the CPU (cluster.gpus_per_node=0): the order alone is checked"
