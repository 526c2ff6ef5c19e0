"""Offloading over real ranks: FSDP2's shards, tensor parallel parts, collectives."""

import pytest

from grpo.placement.resources import Resource
from tests.support.placement_ranks import run
from tests.support.ranks import run_cells

CELLS = [
    {"tensor": 1, "precision": "float32"},
    {"tensor": 2, "precision": "bfloat16"},
    *(
        {"tensor": 1, "resource": str(resource)}
        for resource in (Resource.OPTIMIZER_STATE, Resource.POLICY_PARAMETERS, Resource.REFERENCE_PARAMETERS)
    ),
    {"tensor": 2, "resource": str(Resource.OPTIMIZER_STATE)},
]


@pytest.mark.timeout(200)
def test_two_ranks_are_offloaded_and_come_back_and_a_misplaced_resource_is_seen_on_each():
    preload = ["tests.support.placement_ranks"]
    for cell, answers in zip(CELLS, run_cells(run, CELLS, world=2, preload=preload, seconds=60), strict=True):
        if "resource" in cell:
            assert all(answer is not None for answer in answers), cell
        else:
            assert [equal for _, equal in answers] == [True, True], cell
            assert all(count > 40 for count, _ in answers)
