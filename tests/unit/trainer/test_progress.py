import json
from collections import deque

from grpo.trainer.progress import Progress


def test_it_comes_back_as_it_was_from_json():
    progress = Progress(7, deque([0.5, 1.0], maxlen=3), 0.25, validation_pending=True)
    again = Progress.of(json.loads(json.dumps(progress.values())), window=3)
    assert again == progress
    assert again.recent_rewards.maxlen == 3


def test_a_checkpoint_of_before_validations_were_given_up():
    values = {"step": 2, "recent_rewards": [1.0, 2.0], "accuracy": None}
    assert Progress.of(values, window=1) == Progress(2, deque([2.0], maxlen=1))
