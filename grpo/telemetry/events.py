"""The kinds of line in events.jsonl."""

from typing import Literal

EventKind = Literal[
    "started",  # by RunDirectory
    "resumed",  # by RunDirectory: step, discarded_metrics, discarded_samples, earlier_config
    "ended",  # by RunDirectory: state, reason, exit_code, step
    "parts_started",  # ray_s, engine_s, policy_s
    "checkpoint",  # step, path
    "checkpoint_loaded",  # step, path, backend that saved it, optimizer, random_states_not_taken
    "checkpoint_refused",  # path, reason
    "validation",  # step
    "canary",  # problem: None, or why there is no canary.json
    "warning",  # message, step
    "stop_requested",  # reason, step
    "reward_failure",  # step, count, reason
]
"""Times of the events are seconds since 1970."""
