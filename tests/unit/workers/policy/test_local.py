import torch

from grpo.workers.policy.local import LocalExecution, frozen
from tests.support.policy import tiny_config, tiny_model


def test_a_frozen_model_is_rounded_and_its_buffers_are_not():
    model = frozen(tiny_model().train(), torch.bfloat16)
    assert not model.training
    assert all(each.dtype == torch.bfloat16 and not each.requires_grad for each in model.parameters())
    assert all(each.dtype == torch.float32 for each in model.buffers())


def test_one_process_keeps_what_it_is_given():
    execution = LocalExecution(tiny_model(), None, tiny_config().policy, torch.device("cpu"))
    values = torch.tensor([1.0, 2.0])
    assert execution.total_tokens(values) is values
    (piece,) = execution.pieces({"a": values})
    assert (piece.name, piece.is_whole, piece.data is values) == ("a", True, True)
    target = torch.zeros(2)
    execution.take(target, values)
    assert torch.equal(target, values)
    for (name, weight), (other, parameter) in zip(
        execution.whole_weights(), execution.masters.named_parameters(), strict=True
    ):
        assert name == other
        assert weight.data_ptr() == parameter.data_ptr()
