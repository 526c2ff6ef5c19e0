"""The scorers that come with reasoning-gym's tasks."""

import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from grpo.errors import RewardError
from grpo.rewards.verifiers import Verifier


def reasoning_gym_verifier(*, task: str | None = None, answer_tag: str | None = None) -> Verifier:
    """The score in [0, 1] that the task's own `score_answer` gives.

    task: the task's name; None: the record's `metadata["source_dataset"]`. answer_tag: "answer" takes what the last
    `<answer>...</answer>` of the completion holds (0 if there is none); None: the whole completion. White space at both
    ends is dropped.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise RewardError(
            f"verifier 'reasoning_gym' needs reasoning-gym: pip install 'grpo-matrix[tasks]' ({error})"
        ) from error

    if task is not None and task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=3) or sorted(DATASETS)[:3]
        raise RewardError(f"verifier 'reasoning_gym', kwargs.task {task!r}: no such task; near it: {', '.join(near)}")
    pattern = answer_tag and re.compile(f"<{re.escape(answer_tag)}>(.*?)</{re.escape(answer_tag)}>", re.DOTALL)
    scorer = cache(reasoning_gym.get_score_answer_fn)

    def verify(prompt: str, completion: str, answer: str | None, record: Mapping[str, Any]) -> float:  # noqa: ARG001
        name = task or record.get("metadata", {}).get("source_dataset")
        if name is None:
            raise ValueError("the record's metadata has no source_dataset: name the task in env.<name>.kwargs.task")
        if pattern:
            tagged = pattern.findall(completion)
            if not tagged:
                return 0.0
            completion = tagged[-1]
        return float(scorer(name)(completion.strip(), dict(record)))

    return verify
