import json

from grpo.rollout.replay.buffer import Group
from grpo.rollout.replay.saved import pack, unpack
from grpo.rollout.trajectory import Trajectory
from grpo.workers.protocol import Completion
from tests.support.rollouts import prompt


def test_groups_come_back_as_they_were():
    groups = [
        Group(
            position,
            tuple(
                Trajectory(
                    position, prompt(position),
                    Completion(list(range(length)), [-0.1 * each for each in range(length)], "length", 3, newer),
                    f"text {length}", raw, reward,
                )
                for length, newer, raw, reward in rows
            ),
        )
        for position, rows in [
            (7, [(3, ((1, 4), (2, 6)), 1.0, 0.5), (0, (), None, None)]),
            (2, [(5, (), 0.0, -1.0), (1, (), 0.25, 0.25)]),
        ]
    ]  # fmt: skip
    tensors, values = pack(groups)
    assert unpack(tensors, json.loads(json.dumps(values)), prompt) == groups


def test_nothing_waits():
    tensors, values = pack([])
    assert unpack(tensors, values, prompt) == []
