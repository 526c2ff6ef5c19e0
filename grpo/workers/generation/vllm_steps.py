"""Less Python for each token of each request in vLLM's scheduler.

In a step in which every request samples one more token, vLLM looks for free blocks, makes an output object and updates
the front end for each of them: at 256 requests that is longer than the forward of a small model. When requests are
wanted whole, nearly all of it can be left out:

- A request needs a block of the KV cache only where its next token begins one.
- A token that does not end its request is appended and nothing more. Its front end gets all of a request's tokens with
  the one that ends it.

Everything else is vLLM's own code, which is asked about the requests it is needed for. Both replacements sit on one
engine's scheduler, in this process; `shorten` refuses releases whose scheduler keeps books that it does not know.
"""

from __future__ import annotations

import dataclasses
import dis
import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)

# All that `update_from_output` of 0.25 to 0.32 changes. One name more, and a release does something new there.
_KNOWN = {
    "async_tokens_to_discard", "finished_requests", "num_computed_tokens", "num_in_flight_tokens",
    "num_nans_in_logits", "num_output_placeholders", "num_stale_output_tokens", "processed_step_seq", "resumable",
    "running", "scheduler_stats", "status",
}  # fmt: skip
_STALE = {"num_stale_output_tokens", "async_tokens_to_discard"}  # of tokens that a preemption took back
_USED = (
    "requests", "max_model_len", "kv_cache_manager.allocate_slots", "kv_cache_manager.cache_blocks",
    "kv_cache_manager.empty_kv_cache_blocks", "kv_cache_config.kv_cache_groups", "num_lookahead_tokens",
)  # fmt: skip


def shorten(engine: Any) -> bool:
    """Take the short way on an in-process engine whose requests are wanted whole and without text.

    Returns:
        whether it is taken; if not, one line says why.
    """
    return shorten_scheduler(_scheduler(engine), engine.llm_engine.vllm_config)


def shorten_scheduler(scheduler: Any, config: Any) -> bool:
    """`shorten` of a scheduler with the configuration of its engine."""
    reason = _reason_against(scheduler, config)
    if reason:
        _log.warning("vLLM's scheduler does all its work for every token, which is slow: %s", reason)
        return False
    (group,) = scheduler.kv_cache_config.kv_cache_groups
    block = group.kv_cache_spec.block_size
    scheduler.kv_cache_manager.allocate_slots = _allocating(scheduler.kv_cache_manager, block)
    scheduler.update_from_output = _updating(scheduler, block)
    return True


def undo(engine: Any) -> None:
    """VLLM's own way again."""
    scheduler = _scheduler(engine)
    del scheduler.kv_cache_manager.allocate_slots, scheduler.update_from_output


def tokens_so_far(engine: Any) -> dict[str, int]:
    """Tokens that each running request of an in-process engine has, by the name it was added under."""
    requests = _scheduler(engine).requests
    states = engine.llm_engine.output_processor.request_states
    return {state.external_req_id: requests[name].num_output_tokens for name, state in states.items()}


def _scheduler(engine: Any) -> Any:
    return engine.llm_engine.engine_core.engine_core.scheduler


def _reason_against(scheduler: Any, config: Any) -> str | None:
    for path in _USED:
        try:
            attrgetter(path)(scheduler)
        except AttributeError:
            return f"its scheduler has no {path}"
    unknown = _stored(scheduler) - _KNOWN
    if unknown:
        return f"its scheduler counts {min(unknown)}"
    groups = scheduler.kv_cache_config.kv_cache_groups
    kinds = {type(group.kv_cache_spec).__name__ for group in groups}
    if len(groups) != 1 or kinds != {"FullAttentionSpec"}:
        return f"its KV cache is of {len(groups)} kinds, {', '.join(sorted(kinds))}"
    if scheduler.num_lookahead_tokens or config.model_config.is_multimodal_model or config.lora_config is not None:
        return "it decodes speculatively, sees pictures or has adapters"
    return None


def _stored(scheduler: Any) -> set[str]:
    """Names of the attributes that taking a step's tokens assigns."""
    functions = [
        vars(kind)[name]
        for kind in type(scheduler).__mro__
        for name in ("update_from_output", "_update_request_with_output")
        if name in vars(kind)
        and kind.__module__.startswith("vllm.v1.core.sched.")
        and "interface" not in kind.__module__
    ]
    return {each.argval for code in functions for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}


def _allocating(manager: Any, block: int) -> Callable[..., Any]:
    allocate, none = manager.allocate_slots, manager.empty_kv_cache_blocks

    def allocate_slots(
        request: Any, num_new_tokens: int, *rest: Any, num_lookahead_tokens: int = 0, **more: Any
    ) -> Any:
        # The scheduler's call for a running request has no further arguments. Where the token begins no block, the
        # one before it has the block already; a block that is full by now is found again from the next one on.
        if num_new_tokens == 1 and not rest and not more and request.num_computed_tokens % block:
            return none
        return allocate(request, num_new_tokens, *rest, num_lookahead_tokens=num_lookahead_tokens, **more)

    return allocate_slots


def _updating(scheduler: Any, block: int) -> Callable[[Any, Any], Any]:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import RequestStatus

    update, requests, running = scheduler.update_from_output, scheduler.requests, RequestStatus.RUNNING
    stored, longest, whole = _stored(scheduler), scheduler.max_model_len, RequestOutputKind.FINAL_ONLY
    counts_in_flight = "num_in_flight_tokens" in stored
    ahead = isinstance(scheduler, AsyncScheduler)  # a step is scheduled before the tokens of the last are known
    stale = sorted(_STALE & stored)
    cache_blocks = scheduler.kv_cache_manager.cache_blocks
    delivered: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def update_from_output(scheduler_output: Any, model_output: Any) -> Any:
        sampled, index_of = model_output.sampled_token_ids, model_output.req_id_to_index
        left, left_requests = {}, {}
        for name, count in scheduler_output.num_scheduled_tokens.items():
            request = requests.get(name)
            tokens: Sequence[int] = sampled[index_of[name]] if sampled else ()
            if (
                request is None
                or len(tokens) != 1
                or request.status != running
                or not request.num_output_tokens
                or any(getattr(request, name) for name in stale)
                or _may_end(request, tokens[0], longest, whole)
            ):
                left[name], left_requests[name] = count, request
                continue
            request.append_output_token_ids(tokens[0])
            if counts_in_flight:
                request.num_in_flight_tokens -= count
            if ahead:
                request.num_output_placeholders -= 1
                computed = request.num_computed_tokens - request.num_output_placeholders
                if computed % block == 0:
                    cache_blocks(request, computed)
        outputs = update(dataclasses.replace(scheduler_output, num_scheduled_tokens=left), model_output)
        _deliver((each for group in outputs.values() for each in group.outputs), left_requests, delivered)
        return outputs

    return update_from_output


def _may_end(request: Any, token: int, longest: int, whole: Any) -> bool:
    """Whether vLLM has to look at a request because of this token, or always (if it is not wanted as a `whole`)."""
    parameters = request.sampling_params
    return bool(
        parameters is None
        or request.num_output_tokens + 1 >= request.max_tokens
        or request.num_tokens + 1 >= longest
        or token in parameters.all_stop_token_ids
        or token == parameters.eos_token_id
        or parameters.output_kind is not whole
        or parameters.logprobs is not None
    )


def _deliver(outputs: Iterable[Any], requests: dict[str, Any], delivered: WeakKeyDictionary[Any, int]) -> None:
    """Put all tokens into an output that have not been in one."""
    for output in outputs:
        request = requests.get(output.request_id)
        if request is not None and output.new_token_ids:
            start = delivered.get(request, 0)
            output.new_token_ids = list(request.output_token_ids[start:])
            delivered[request] = start + len(output.new_token_ids)
