"""Which groups may be started, which wait to be trained, and which have become too old. No clock, thread or engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from grpo.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class Group:
    """A complete group: all completions of one drawing of one prompt, scored."""

    position: int  # of the prompt in the order of the loader; names the group
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        """The version of the weights that the group's oldest token was sampled with."""
        return min(each.completion.weight_version for each in self.trajectories)


class ReplayBuffer:
    """Groups on their way from a prompt to the update that trains them. Each is started, finished and taken, once.

    Ages are in steps: the updates between the weights of a group's oldest token and those that train on it, divided by
    the updates of a step, rounded up. No group becomes too old, by two rules. Beyond those trained at most
    (maximum age + 1) x groups of a step have been started (AReaL's bound, arXiv 2505.24298, section 5.1). And a
    step takes the oldest groups that are ready only if all others, those that run among them, can still be trained in
    time: at most j steps' groups may have j steps left. Else it waits for those that run: dropped as too old, whoever
    talks long would be started again and again and never be trained.
    """

    def __init__(self, *, groups_per_step: int, max_age_steps: int, updates_per_step: int) -> None:
        assert groups_per_step > 0, groups_per_step
        assert max_age_steps > 0, max_age_steps
        assert updates_per_step > 0, updates_per_step
        self._groups_per_step = groups_per_step
        self._max_age_steps = max_age_steps
        self._updates_per_step = updates_per_step
        self._version = 0
        self._drawn = 0
        self._over = 0  # trained with weights before these, or given up
        self._again: list[int] = []  # ran when a checkpoint was saved
        self._running: dict[int, int] = {}  # version of the weights at the start, by position
        self._ready: dict[int, Group] = {}
        self._taken: list[Group] = []  # since `forget_taken`

    @property
    def drawn(self) -> int:
        """Prompts drawn from the loader so far: the position of the next."""
        return self._drawn

    @property
    def running(self) -> tuple[int, ...]:
        """Positions that were started and have not finished."""
        return tuple(self._running)

    @property
    def ready(self) -> int:
        """Groups that wait to be taken."""
        return len(self._ready)

    @property
    def capacity(self) -> int:
        """The most groups that run or wait at one time."""
        return (self._max_age_steps + 1) * self._groups_per_step

    @property
    def empty(self) -> bool:
        """Whether nothing runs, waits or is to be started again."""
        return not (self._running or self._again or self._ready)

    @property
    def complete(self) -> bool:
        """Whether nothing runs or is to be started again: without further prompts no more groups will come."""
        return not (self._running or self._again)

    def begin(self, version: int) -> None:
        """The weights of the first step since the run began or was resumed, maybe with other settings."""
        self.set_version(version)
        self._start_late_ones_again()

    def set_version(self, version: int) -> None:
        """The weights that the engine has now, those of the policy after its last step."""
        assert version >= self._version, (version, self._version)
        self._version = version
        self._over = self._number_over

    def to_start(self, remaining: int | None) -> tuple[int, ...]:
        """Positions to start now. `remaining`: prompts left in the loader, None for no end."""
        started = self._drawn - len(self._again)
        allowed = max(0, self._over + self.capacity - started)
        again = self._again[:allowed]
        new = allowed - len(again)
        return (*again, *range(self._drawn, self._drawn + (new if remaining is None else min(new, remaining))))

    def started(self, position: int) -> None:
        """The engine is about to have it."""
        assert position not in self._running, position
        assert position not in self._ready, position
        if position in self._again:
            self._again.remove(position)
        else:
            assert position == self._drawn, (position, self._drawn)
            self._drawn += 1
        self._running[position] = self._version

    def finished(self, group: Group) -> None:
        """All completions of a running group are there and scored."""
        del self._running[group.position]
        self._ready[group.position] = group

    def give_up(self, position: int) -> None:
        """A running group has ended and will not be trained: another may be started in its place."""
        del self._running[position]
        self._over += 1

    def age(self, version: int) -> int:
        """In steps, of what was sampled with `version`, were it trained now."""
        return ceil((self._version - version) / self._updates_per_step)

    def take(self, *, rest: bool) -> list[Group] | None:
        """One step's groups, the oldest first; None while there are too few or while older ones are waited for.

        With `rest`, all that are left, fewer than a step's: for when no more will come.
        """
        wanted = min(self._groups_per_step, len(self._ready)) if rest else self._groups_per_step
        if wanted == 0 or len(self._ready) < wanted:
            return None
        oldest = sorted(self._ready.values(), key=lambda group: (group.oldest_version, group.position))
        left = [*self._running.values(), *(group.oldest_version for group in oldest[wanted:])]
        if not self._in_time(left):
            return None
        taken = oldest[:wanted]
        self._taken += taken  # first, so that an interrupt in between loses none of them
        for group in taken:
            del self._ready[group.position]
        ages = [self.age(group.oldest_version) for group in taken]
        assert max(ages) <= self._max_age_steps, ages
        return taken

    def forget_taken(self) -> None:
        """What was taken so far is trained."""
        self._taken = []

    def put_back(self) -> None:
        """Have what was taken since `forget_taken` wait again; more than once does no harm."""
        for group in self._taken:
            self._ready[group.position] = group

    @property
    def _number_over(self) -> int:
        """Of all groups, those that were taken or given up, without those that were put back."""
        return self._drawn - len(self._again) - len(self._running) - len(self._ready)

    def _start_late_ones_again(self) -> None:
        """Of the waiting groups, those that are too old or cannot all be trained before they are: the last of them."""
        kept: dict[int, Group] = {}
        for group in sorted(self._ready.values(), key=lambda group: (group.oldest_version, group.position)):
            if self.age(group.oldest_version) + len(kept) // self._groups_per_step <= self._max_age_steps:
                kept[group.position] = group
        self._again = sorted({*self._again, *(self._ready.keys() - kept.keys())})
        self._ready = kept

    def _in_time(self, versions: Sequence[int]) -> bool:
        """Whether groups of these versions can all be trained in the steps after this one."""
        left = [self._max_age_steps - self.age(version) for version in versions]
        return all(
            sum(each <= steps for each in left) <= steps * self._groups_per_step for steps in range(self._max_age_steps)
        )

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        """JSON values and the waiting groups, from which `load_state` continues: what ran is started again."""
        again = sorted({*self._again, *self._running})
        return {"drawn": self._drawn, "again": again}, list(self._ready.values())

    def load_state(self, values: Mapping[str, Any], ready: Sequence[Group]) -> None:
        """Take back what `state` gave. `begin` has those started again that a lowered maximum makes too old."""
        self._drawn = int(values["drawn"])
        self._again = [int(position) for position in values["again"]]
        self._running = {}
        self._ready = {group.position: group for group in ready}
