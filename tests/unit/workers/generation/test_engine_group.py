"""Replicas as one engine: whatever their number, the same answers in the same order."""

import pytest

from grpo.errors import GenerationError
from grpo.placement.errors import PlacementError
from grpo.placement.resources import Residence, Resource
from grpo.workers.generation.engine_group import EngineGroup
from grpo.workers.generation.engine_rank import Refusal
from grpo.workers.generation.engine_start import Engines
from grpo.workers.protocol import Completion, SamplingParams
from tests.support.local_group import LocalGroup

SAMPLING = SamplingParams(max_new_tokens=4)


class Naming:
    """Completions whose only token says which of which seed it is."""

    def __init__(self, rank):
        self.rank = rank
        self.asleep = None
        self.failure = None

    def generate(self, prompts, num_completions, sampling, seeds, parts):
        if self.failure is not None:
            raise self.failure
        if not all(prompts):
            return Refusal(GenerationError("no tokens"))
        self.parts = parts
        return [
            [Completion([100 * seeds[part.prompt] + number], [-0.5], "stop", 0) for number in part.completions]
            for part in parts
        ]

    def sleep(self, level):
        self.asleep = level

    def wake(self, tags):
        self.asleep = tags

    def shutdown(self):
        pass


def group(ranks, size=1):
    workers = LocalGroup(ranks, Naming)
    return EngineGroup(Engines(workers, size)), workers


@pytest.mark.parametrize(("ranks", "size"), [(1, 1), (2, 1), (3, 1), (7, 1), (4, 2)])
@pytest.mark.parametrize("prompts", [0, 1, 2, 5])
def test_answers_do_not_depend_on_the_number_of_replicas(ranks, size, prompts):
    engines, workers = group(ranks, size)
    asked = [[1] * (3 + 5 * prompt % 7) for prompt in range(prompts)]
    answers = engines.generate(asked, 3, SAMPLING, list(range(1, prompts + 1)))
    assert [[each.token_ids for each in one] for one in answers] == [
        [[100 * (prompt + 1) + number] for number in range(3)] for prompt in range(prompts)
    ]
    shares = [worker.parts for worker in workers.workers]
    assert all(shares[rank] == shares[rank - rank % size] for rank in range(ranks))  # all ranks of an engine the same


def test_all_ranks_sleep_and_wake_in_the_right_order():
    engines, workers = group(4, 2)
    engines.sleep(2)
    assert [worker.asleep for worker in workers.workers] == [2] * 4
    assert engines.residences()[Resource.ENGINE_WEIGHTS] == Residence.ABSENT
    with pytest.raises(PlacementError, match="generate needs engine_weights"):
        engines.generate([[1]], 1, SAMPLING, [0])
    engines.wake(["weights"])
    assert [worker.asleep for worker in workers.workers] == [("weights",)] * 4
    with pytest.raises(PlacementError, match="without values until a refit"):
        engines.wake(["kv_cache"])
    engines.updated(1)
    engines.wake(["kv_cache"])
    assert len(engines.generate([[1]], 1, SAMPLING, [0])[0]) == 1


def test_a_refused_request_is_the_engines_own_error_and_the_next_is_answered():
    engines, workers = group(2)
    with pytest.raises(GenerationError, match="no tokens"):
        engines.generate([[]], 1, SAMPLING, [0])
    with pytest.raises(GenerationError, match="2 prompts but 1 seeds"):
        engines.generate([[1], [1]], 1, SAMPLING, [0])
    assert len(engines.generate([[1]], 2, SAMPLING, [0])[0]) == 2
    engines.shutdown()
    assert workers.calls[-1][0] == "shutdown"


@pytest.mark.parametrize("end", ["sleep", "shutdown"])
def test_engines_whose_sampling_was_given_up_are_not_waited_for(end):
    engines, workers = group(2)
    workers.workers[1].failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engines.generate([[1]], 2, SAMPLING, [0])
    engines.sleep(2) if end == "sleep" else engines.shutdown()
    assert workers.ended
    assert [method for method, _ in workers.calls] == ["generate"]
    engines.shutdown()
