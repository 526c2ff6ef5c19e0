# ruff: noqa: NPY002  # the global generators are the subject
import json
import random

import numpy as np
import pytest
import torch

from grpo.checkpoint.rng import capture_rng, remember_rng, restore_rng, seed_rng
from grpo.errors import CheckpointError


@pytest.fixture(autouse=True)
def unchanged_generators():
    """The rest of the session draws what it would have drawn."""
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(saved[0])
    np.random.set_state(saved[1])
    torch.set_rng_state(saved[2])


def draw():
    return (
        [random.random() for _ in range(700)] + [random.gauss(0, 1)],
        np.random.standard_normal(701).tolist() + np.random.randint(0, 9, 5).tolist(),
        torch.randn(701).tolist() + torch.randperm(9).tolist(),
    )


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_the_same_numbers_follow(draws):
    for _ in range(draws):  # an odd number of normals leaves one in reserve
        random.gauss(0, 1)
        np.random.standard_normal()
        torch.randn(1)
    tensors, values = capture_rng()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    values = json.loads(json.dumps(values))
    expected = draw()
    draw()
    assert restore_rng(tensors, values) == []
    assert draw() == expected


def test_a_seed_decides_all_of_them():
    drawn = []
    for seed in (2**33 + 1, 2**33 + 1, 3):
        seed_rng(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[1], drawn[2], strict=True))


@pytest.mark.parametrize("draws", [0, 1])
def test_what_is_remembered_is_put_back(draws):
    for _ in range(draws):
        random.gauss(0, 1)
        np.random.standard_normal()
    put_back = remember_rng()
    expected = draw()
    draw()
    put_back()
    assert draw() == expected


def test_a_captured_state_does_not_move_on():
    tensors, _ = capture_rng()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    draw()
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors.items())


def test_a_cuda_state_is_reported_where_there_is_no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tensors, values = capture_rng()
    assert restore_rng(tensors | {"rng/torch_cuda": torch.zeros(16, dtype=torch.uint8)}, values) == ["rng/torch_cuda"]


def test_the_cuda_state_is_saved_and_restored_once_cuda_is_in_use(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor([3, 1], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: given.append(state.tolist()))
    assert restore_rng(*capture_rng()) == []
    assert given == [[3, 1]]


@pytest.mark.parametrize("name", ["rng/torch", "rng/python", "rng/numpy"])
def test_missing_or_malformed_states_are_refused(name):
    tensors, values = capture_rng()
    with pytest.raises(CheckpointError, match=name):
        restore_rng({key: tensor for key, tensor in tensors.items() if key != name}, values)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore_rng(tensors | {name: tensors[name][:3]}, values)
    with pytest.raises(CheckpointError, match="lacks"):
        restore_rng(tensors, {})


def test_an_exchanged_numpy_generator_is_refused():
    state = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        with pytest.raises(CheckpointError, match="PCG64"):
            capture_rng()
    finally:
        np.random.set_bit_generator(state)
