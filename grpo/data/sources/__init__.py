"""Where prompts come from; `read_examples` is the way in."""

from grpo.config.schema import Dataset, FileDataset, FunctionDataset, HubDataset
from grpo.data.sources.function import function_records
from grpo.data.sources.record import Example, Message, examples

__all__ = ["Example", "Message", "read_examples"]


def read_examples(dataset: Dataset, *, key: str) -> list[Example]:
    """The examples of `dataset`; `key` is its place in the recipe ("data.train"), for errors.

    Raises DataError when it cannot be read or holds nothing.
    """
    if isinstance(dataset, FunctionDataset):
        records = function_records(dataset.function, dataset.kwargs, key=key)
    else:
        raise TypeError(type(dataset))
    found = examples(
        records,
        input_key=dataset.input_key,
        output_key=dataset.output_key,
        prompt_template=dataset.prompt_template,
        max_samples=dataset.max_samples,
        key=key,
    )
    return found
