"""`data.*` and `env.*`: where prompts come from and what scores the answers."""

from typing import Annotated, Any, Literal

from pydantic import Field

from grpo.config.schema.base import Section


class DatasetBase(Section):
    env_name: str | None = Field(
        None,
        description="key of `env` that scores this dataset; null: data.default.env_name, or the only entry of `env`",
    )
    prompt_template: str | None = Field(
        None, description="'{field}' and '{field[key]}' of the record; null: the prompt column"
    )
    max_samples: int | None = Field(None, gt=0, description="first N records only")


class FileDataset(DatasetBase):
    """Records of a JSONL or Parquet file."""

    kind: Literal["file"]
    data_path: str
    input_key: str = "prompt"
    output_key: str = "answer"


class HubDataset(DatasetBase):
    """A Hugging Face dataset by name (stored by `grpo fetch`) or a local folder."""

    kind: Literal["hub"]
    dataset_name: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    input_key: str = "prompt"
    output_key: str = "answer"


class ReasoningGymDataset(DatasetBase):
    """Tasks that reasoning-gym generates."""

    kind: Literal["reasoning_gym"]
    task: str
    size: int = Field(gt=0)
    seed: int = Field(0, ge=0)
    task_kwargs: dict[str, Any] = Field(default_factory=dict)


class FunctionDataset(DatasetBase):
    """Records that the user's `module:function(**kwargs)` returns."""

    kind: Literal["function"]
    function: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    input_key: str = "prompt"
    output_key: str = "answer"


Dataset = Annotated[FileDataset | HubDataset | ReasoningGymDataset | FunctionDataset, Field(discriminator="kind")]


class DataDefault(Section):
    """What a dataset uses where it says nothing itself."""

    env_name: str | None = None
    prompt_file: str | None = Field(
        None, description="text with one '{}' for the prompt: a path, or a shipped name (cot.txt)"
    )
    system_prompt_file: str | None = Field(None, description="path of the system prompt; needs a chat template")


class Data(Section):
    train: Dataset
    validation: Dataset | None = None
    default: DataDefault = DataDefault()
    shuffle: bool = True
    max_input_seq_length: int | None = Field(
        None, gt=0, description="prompt tokens; null: what leaves room for min_new_tokens, and for one"
    )
    keep_validation_apart: bool = Field(
        True, description="leave out of training the prompts that validation has too; how many is counted"
    )
    overlong_prompts: Literal["drop", "error"] = Field(
        "drop", description="prompts over the limit: dropped and counted, or refused"
    )


class Env(Section):
    """One verifier and the pool of processes that runs it."""

    verifier: str = Field(
        description="'math', 'reasoning_gym', 'exact_match', 'coin' (by the sample's id), or the user's "
        "'module:function'"
    )
    num_workers: int = Field(2, gt=0, description="processes")
    timeout_s: float = Field(10.0, gt=0, description="seconds for one sample; a verifier that takes longer is killed")
    memory_limit_mb: int | None = Field(4096, gt=0, description="address space of one process")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to the verifier")
