import pytest
import torch
from torch import nn

from grpo.errors import CheckpointError
from grpo.workers.policy.optimizer import NamedAdamW


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.second = nn.Parameter(torch.tensor([[0.5]]))


def make(**settings):
    module = Two()
    return module, NamedAdamW(module, **{"lr": 0.1, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.0, **settings})


def give(module, first, second):
    module.first.grad, module.second.grad = torch.tensor(first), torch.tensor(second)


def test_gradients_are_scaled_down_to_the_norm_that_is_allowed():
    module, optimizer = make()
    give(module, [3.0, 0.0], [[4.0]])
    assert float(optimizer.norm()) == pytest.approx(5.0)
    optimizer.clip(5.0, 2.5)
    torch.testing.assert_close(module.first.grad, torch.tensor([1.5, 0.0]))
    torch.testing.assert_close(module.second.grad, torch.tensor([[2.0]]))
    for most in (None, 10.0):
        optimizer.clip(2.5, most)
    assert float(optimizer.norm()) == pytest.approx(2.5)
    torch.testing.assert_close(module.second.grad, torch.tensor([[2.0]]))


def test_first_step_on_a_worked_example():
    # Adam's first step is the learning rate times the gradient's sign; decay takes lr x decay x weight before it.
    module, optimizer = make(weight_decay=0.5)
    give(module, [7.0, -0.01], [[0.0]])
    optimizer.step(0.1)
    torch.testing.assert_close(module.first.detach(), torch.tensor([0.95 - 0.1, -1.9 + 0.1]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(module.second.detach(), torch.tensor([[0.475]]))
    assert module.first.grad is None


def test_names_of_gradients_that_are_not_finite():
    module, optimizer = make()
    give(module, [3.0, torch.inf], [[4.0]])
    assert optimizer.non_finite() == ["first"]


def test_state_goes_in_and_out_by_name():
    module, optimizer = make()
    assert optimizer.state() == {}
    give(module, [1.0, 2.0], [[3.0]])
    optimizer.step(0.1)
    state = optimizer.state()
    assert sorted(state) == [
        f"{name}.{each}" for name in ("first", "second") for each in ("exp_avg", "exp_avg_sq", "step")
    ]
    torch.testing.assert_close(state["first.exp_avg"], torch.tensor([0.1, 0.2]))
    torch.testing.assert_close(state["second.exp_avg_sq"], torch.tensor([[0.09]]))


def test_a_step_tensor_shared_in_the_file_counts_once_per_parameter():
    module, optimizer = make()
    give(module, [1.0, 2.0], [[3.0]])
    optimizer.step(0.1)
    shared = torch.tensor(1.0)
    state = {name: shared if name.endswith("step") else each for name, each in optimizer.state().items()}
    optimizer.load_state(state)
    give(module, [1.0, 2.0], [[3.0]])
    optimizer.step(0.1)
    assert {float(each) for name, each in optimizer.state().items() if name.endswith("step")} == {2.0}
    assert float(shared) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("first.exp_avg"), r"1 names differ, first first\.exp_avg"),
        (lambda state: state.update({"third.step": torch.tensor(1.0)}), r"1 names differ, first third\.step"),
        (
            lambda state: state.update({"first.exp_avg": torch.zeros(3)}),
            r"first\.exp_avg has shape \[3\] there and \[2\] here",
        ),
    ],
)
def test_state_of_another_model_is_refused_and_leaves_this_one(change, message):
    module, optimizer = make()
    give(module, [1.0, 2.0], [[3.0]])
    optimizer.step(0.1)
    before = optimizer.state()
    state = dict(before)
    change(state)
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state(state)
    after = optimizer.state()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
