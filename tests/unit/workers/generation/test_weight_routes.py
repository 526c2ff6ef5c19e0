"""Traced copies against the loader they were traced from."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from grpo.workers.generation.weight_routes import UnknownRoutesError, WeightRoutes

SHAPES = {"q": (6, 4), "k": (4, 4), "up": (8, 4), "norm": (4,), "embed": (10, 4)}
RANK, RANKS = 1, 2


class Fused(nn.Module):
    """Loads as vLLM's layers do: q and k in one matrix, this rank's rows or columns, a padded vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(5, 4), requires_grad=False)
        self.up = nn.Parameter(torch.zeros(8, 2), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.embed = nn.Parameter(torch.zeros(6, 4), requires_grad=False)
        self.head = self.embed

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            if name in ("q", "k"):
                start, rows = (0, 3) if name == "q" else (3, 2)
                self.qk.data.narrow(0, start, rows).copy_(weight.narrow(0, RANK * rows, rows))
            elif name == "up":
                self.up.data.copy_(weight.narrow(1, RANK * 2, 2))
            elif name == "embed":
                self.embed[:5].data.copy_(weight[5:])
                self.embed[5:].data.fill_(0)
            else:
                self.norm.data.copy_(weight)


def weights(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: torch.randn(shape).to(dtype) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_copies_are_those_of_the_loader(dtype):
    traced, expected, given = Fused(), Fused(), weights(dtype)
    routes = WeightRoutes.traced(traced, SHAPES, torch.float32)
    assert all(bool((each == 0).all()) for each in traced.parameters()), "tracing changed a weight"
    places = {name: each.data_ptr() for name, each in traced.named_parameters()}
    for name in sorted(given, reverse=True):
        routes.load(name, given[name])
    expected.load_weights(given.items())
    for name, parameter in traced.named_parameters():
        assert torch.equal(parameter, dict(expected.named_parameters())[name]), name
        assert parameter.data_ptr() == places[name]


def test_weights_that_are_views_or_not_contiguous():
    traced, expected, given = Fused(), Fused(), weights()
    routes = WeightRoutes.traced(traced, SHAPES, torch.float32)
    bucket = torch.cat([torch.randn(3), *(each.flatten() for each in given.values())])
    start = 3
    for name, each in given.items():
        view = bucket[start : start + each.numel()].view(each.shape)
        start += each.numel()
        routes.load(name, view if name != "q" else view.t().contiguous().t())
    expected.load_weights(given.items())
    for mine, its in zip(traced.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_sender_may_use_its_buffer_again():
    traced = Fused()
    routes = WeightRoutes.traced(traced, SHAPES, torch.float32)
    buffer = torch.ones(4)
    routes.load("norm", buffer)
    buffer.fill_(7)
    assert torch.equal(traced.norm, torch.ones(4))


class Scaling(Fused):
    def load_weights(self, loaded: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights((name, weight * 2 if name == "q" else weight) for name, weight in loaded)


class Forgetting(Fused):
    def load_weights(self, loaded: Iterable[tuple[str, Tensor]]) -> None:
        super().load_weights((name, weight) for name, weight in loaded if name != "up")


class Partial(Fused):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Packed(Fused):
    def __init__(self) -> None:
        super().__init__()
        self.quant_method = object()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Scaling, "changes weights before"),
        (Forgetting, "puts up nowhere"),
        (Partial, "fills 64 of 67 elements"),
        (Packed, r"packs its weights \(object\)"),
    ],
)
def test_a_loader_that_does_more_is_refused_and_nothing_is_changed(kind, reason):
    model = kind()
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(UnknownRoutesError, match=reason):
        WeightRoutes.traced(model, SHAPES, torch.float32)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
