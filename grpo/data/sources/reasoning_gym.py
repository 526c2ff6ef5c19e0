"""Records of the tasks that reasoning-gym generates: question, answer, and the metadata that its scorers need."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from grpo.data.sources.record import numbered
from grpo.errors import DataError

QUESTION = "question"
ANSWER = "answer"


def reasoning_gym_records(
    task: str, task_kwargs: Mapping[str, Any], *, size: int, seed: int, key: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, record) pairs of `size` entries of a task.

    Raises DataError when reasoning-gym is not installed, for a task that it does not have (naming the nearest), and for
    arguments that the task does not take.
    """
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise DataError(f"{key}: tasks of reasoning-gym need it: pip install 'grpo-matrix[tasks]'") from error
    if task not in DATASETS:
        near = get_close_matches(task, DATASETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the tasks are: {', '.join(sorted(DATASETS))}"
        raise DataError(f"{key}.task: reasoning-gym has no task {task!r}; {hint}")
    _, config_class = DATASETS[task]
    valid = sorted({field.name for field in fields(config_class)} - {"seed", "size"})
    unknown = sorted(set(task_kwargs) - set(valid))
    if unknown:
        raise DataError(
            f"{key}.task_kwargs: {task} does not take {', '.join(unknown)}; it takes: {', '.join(valid) or 'none'}"
        )
    try:
        dataset = create_dataset(task, size=size, seed=seed, **task_kwargs)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"{key}.task_kwargs: {task} refuses {dict(task_kwargs)}: {error}") from error
    return numbered((dataset[index] for index in range(size)), task)
