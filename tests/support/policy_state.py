"""What saving and restoring must keep, of a policy of either backend."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.support.policy import random_batch, whole_state

State = tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]


def assert_same(ours: State, theirs: State) -> None:
    """Two saved states, bit for bit."""
    assert ours[1] == theirs[1]
    assert ours[0].keys() == theirs[0].keys()
    for name in theirs[0]:
        assert torch.equal(ours[0][name], theirs[0][name]), name


def check_that_a_restored_policy_goes_on(make: Callable[[int], Any]) -> None:
    """`make` gives a new policy, its weights drawn by the seed."""
    batches = [random_batch(seed=seed) for seed in range(5)]
    policy = make(0)
    for batch in batches[:3]:
        policy.train(batch)
    saved = whole_state(policy)
    results = [policy.train(batch) for batch in batches[3:]]
    restored = make(9)
    restored.train(batches[0])  # a used optimizer must not shine through
    restored.load_state(*saved)
    assert_same(whole_state(restored), saved)
    assert [restored.train(batch) for batch in batches[3:]] == results
    assert_same(whole_state(restored), whole_state(policy))
    assert torch.equal(restored.logprobs(batches[0]), policy.logprobs(batches[0]))


def check_that_a_fresh_policy_can_be_restored(make: Callable[[int], Any]) -> None:
    """As above, before any update."""
    policy, batch = make(0), random_batch()
    saved = whole_state(policy)
    assert not any(name.startswith("optimizer.") for name in saved[0])
    restored = make(3)
    restored.train(batch)
    restored.load_state(*saved)
    assert restored.train(batch) == policy.train(batch)
