"""Models and tokenizers from a local folder: safetensors only, no remote code, nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from grpo.errors import ModelError

# Their own annotations are partial.
_models: Any = AutoModelForCausalLM
_logging: Any = logging


def load_model_config(folder: Path) -> Any:
    """The transformers config of a folder.

    Raises:
        ModelError: config.json is missing, is not JSON, or names an architecture that transformers does not know.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ModelError(f"{folder / 'config.json'}: not a model configuration that can be read: {error}") from error
    if config.model_type not in _causal_model_types():
        raise ModelError(f"{folder / 'config.json'}: model_type {config.model_type!r} is not a causal language model")
    return config


def load_model(
    folder: Path, *, dtype: torch.dtype, random_weights: bool = False, seed: int = 0, attention: str = "sdpa"
) -> PreTrainedModel:
    """A causal language model in evaluation mode on the CPU.

    Args:
        folder: holds config.json and, unless `random_weights`, safetensors.
        dtype: of the parameters.
        random_weights: initialise from `seed` by the config's own rule instead of reading weights.
        seed: of random weights; the global generators stay as they are.
        attention: transformers' name of the attention implementation.

    Raises:
        ModelError: the folder's weights are missing, unreadable, incomplete or of other shapes than its config.
    """
    config = load_model_config(folder)
    if random_weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _models.from_config(config, dtype=torch.float32, attn_implementation=attention)
        for parameter in model.parameters():
            # Buffers, rotary frequencies among them, stay float32 as they do when weights are read.
            parameter.data = parameter.data.to(dtype)
        return model.eval()  # type: ignore[no-any-return]
    check_weights_present(folder)
    try:
        with _quiet_transformers():
            model, report = _models.from_pretrained(
                folder, dtype=dtype, attn_implementation=attention, local_files_only=True, use_safetensors=True,
                trust_remote_code=False, output_loading_info=True,
            )  # fmt: skip
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: the weights cannot be read: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} weights are missing from the safetensors, the first is {missing[0]}"
        )
    return model.eval()  # type: ignore[no-any-return]


def check_weights_present(folder: Path) -> None:
    """Raise ModelError if a folder holds no safetensors."""
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder}: no *.safetensors weights here; set policy.random_weights=true to start from random weights, or "
            "name a folder that holds them (other formats are not read: they can run code)"
        )


def load_tokenizer(folder: Path, *, vocabulary: int | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer that has a padding and an end-of-sequence token.

    Args:
        folder: holds the tokenizer's files.
        vocabulary: rows of the model's embedding; the tokenizer may not have ids beyond them.

    Raises:
        ModelError: no readable tokenizer, no end of sequence, or ids that the model has no embedding for.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}: no tokenizer that can be read: {error}") from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{folder}: the tokenizer has no end-of-sequence token, so no completion could ever end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if vocabulary is not None and len(tokenizer) > vocabulary:
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens but the model's vocab_size is {vocabulary}: "
            "policy.tokenizer.name and policy.model_name do not belong together"
        )
    return tokenizer


def _causal_model_types() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


class _quiet_transformers:  # noqa: N801 (a context manager, named as a verb)
    """No progress bars and no warnings while loading: what matters is in the loading report."""

    def __enter__(self) -> None:
        self._level = _logging.get_verbosity()
        self._bars = _logging.is_progress_bar_enabled()
        _logging.set_verbosity_error()
        _logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        _logging.set_verbosity(self._level)
        if self._bars:
            _logging.enable_progress_bar()
