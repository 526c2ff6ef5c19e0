"""Where prompts come from; `read_examples` is the way in."""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from grpo.config.schema import Dataset, FileDataset, FunctionDataset, HubDataset, ReasoningGymDataset
from grpo.data.sources.file import file_records
from grpo.data.sources.function import function_records
from grpo.data.sources.hub import hub_records
from grpo.data.sources.reasoning_gym import ANSWER, QUESTION, reasoning_gym_records
from grpo.data.sources.record import Example, Message, examples
from grpo.errors import DataError

__all__ = ["Example", "Message", "read_examples"]


def read_examples(dataset: Dataset, *, key: str) -> list[Example]:
    """The examples of `dataset`; `key` is its place in the recipe ("data.train"), for errors.

    Raises DataError when it cannot be read or holds nothing.
    """
    if isinstance(dataset, ReasoningGymDataset):
        input_key, output_key = QUESTION, ANSWER
    else:
        input_key, output_key = dataset.input_key, dataset.output_key
    found = examples(
        _records(dataset, key),
        input_key=input_key,
        output_key=output_key,
        prompt_template=dataset.prompt_template,
        max_samples=dataset.max_samples,
        key=key,
    )
    if not found:
        raise DataError(f"{key}: {_source(dataset)} holds no records")
    return found


def _records(dataset: Dataset, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    match dataset:
        case FileDataset():
            return file_records(dataset.data_path, key=key)
        case HubDataset():
            return hub_records(
                dataset.dataset_name, subset=dataset.subset, split=dataset.split, revision=dataset.revision, key=key
            )
        case ReasoningGymDataset():
            return reasoning_gym_records(
                dataset.task, dataset.task_kwargs, size=dataset.size, seed=dataset.seed, key=key
            )
        case FunctionDataset():
            return function_records(dataset.function, dataset.kwargs, key=key)
        case _:
            assert_never(dataset)


def _source(dataset: Dataset) -> str:
    match dataset:
        case FileDataset():
            return dataset.data_path
        case HubDataset():
            return f"{dataset.dataset_name} (split {dataset.split})"
        case ReasoningGymDataset():
            return dataset.task
        case FunctionDataset():
            return dataset.function
        case _:
            assert_never(dataset)
