"""Requests that no engine is given."""

import pytest

from grpo.errors import GenerationError
from grpo.workers.generation.requests import check_requests
from grpo.workers.protocol import SamplingParams


def check(prompts=((1, 2),), num_completions=2, seeds=(0,), context=8, vocabulary=10, **sampling):
    parameters = SamplingParams(**{"max_new_tokens": 4} | sampling)
    check_requests(prompts, num_completions, parameters, seeds, context=context, vocabulary=vocabulary)


def test_a_request_in_range_passes():
    check()
    check(prompts=[[1] * 7, [9]], seeds=[0, 2**64 - 1], min_new_tokens=4, stop_token_ids=(0, 9), top_k=1, top_p=0.5)
    check(prompts=[], seeds=[])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": ()}, "1 prompts but 0 seeds"),
        ({"seeds": (-1,)}, "seed -1"),
        ({"seeds": (2**64,)}, "seed 18446744073709551616"),
        ({"num_completions": 0}, "num_completions is 0"),
        ({"prompts": ((),)}, "prompt 0 has no tokens"),
        ({"prompts": ([1] * 8,)}, "prompt 0 has 8 tokens.*context of 8"),
        ({"prompts": ((1, 10),)}, "from 1 to 10.*0 to 9"),
        ({"prompts": ((-1, 1),)}, "from -1 to 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.01}, "top_p=1.01"),
        ({"top_k": 0}, "top_k=0"),
        ({"min_new_tokens": 5}, "min_new_tokens=5"),
        ({"stop_token_ids": (10,)}, "stop_token_ids"),
        ({"stop_strings": ("",)}, "stop_strings"),
    ],
)
def test_out_of_range_names_the_value(values, message):
    with pytest.raises(GenerationError, match=message):
        check(**values)
