import pytest
import torch

from grpo.rollout.trajectory import to_batch
from grpo.workers.protocol import Completion
from tests.support.rollouts import trajectory


def test_sequences_lie_end_to_end_with_the_mask_on_completions():
    batch = to_batch(
        [
            trajectory(0, 1.0, prompt_tokens=(5, 6, 7), tokens=(3, 1)),
            trajectory(1, 0.0, prompt_tokens=(8,), tokens=(2, 2, 1)),
        ],
        overlong_filtering=False,
    )
    assert batch.tokens.tolist() == [5, 6, 7, 3, 1, 8, 2, 2, 1]
    assert batch.lengths.tolist() == [5, 4]
    assert batch.mask.int().tolist() == [0, 0, 0, 1, 1, 0, 1, 1, 1]
    assert batch.generation_logprobs.tolist() == [0, 0, 0, -0.5, -1.0, 0, -0.5, -1.0, -1.5]
    assert batch.sequence_ids.tolist() == [0] * 5 + [1] * 4


def test_the_end_of_sequence_token_is_trained_even_where_it_is_the_padding_token():
    pad = end = 0
    batch = to_batch([trajectory(0, 1.0, tokens=(4, end))], overlong_filtering=False)
    assert int(batch.mask.sum()) == 2
    assert batch.tokens[batch.mask].tolist() == [4, pad]


@pytest.mark.parametrize(("filtering", "trained"), [(False, [2, 2]), (True, [2, 0])])
def test_overlong_filtering_gives_truncated_completions_no_loss(filtering, trained):
    batch = to_batch([trajectory(0, 1.0), trajectory(0, 1.0, reason="length")], overlong_filtering=filtering)
    assert [int(batch.select([row]).mask.sum()) for row in range(2)] == trained


def test_a_completion_without_a_verdict_is_not_trained():
    batch = to_batch([trajectory(0, None), trajectory(0, 1.0)], overlong_filtering=False)
    assert batch.mask.int().tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_dtypes():
    batch = to_batch([trajectory(0, 1.0)], overlong_filtering=False)
    assert (batch.tokens.dtype, batch.mask.dtype) == (torch.int64, torch.bool)
    assert batch.generation_logprobs.dtype == torch.float32


def test_an_engine_that_loses_log_probs_is_found_out():
    with pytest.raises(ValueError, match="2 tokens but 1 log-probs"):
        Completion([1, 2], [-0.1], "stop", 0)
