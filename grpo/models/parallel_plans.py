"""How Llama 3.x, Qwen 2.5 and Qwen 3 dense models are cut over tensor parallel ranks.

Column-wise then row-wise inside each block (Shoeybi et al. 2019, arXiv:1909.08053), embedding and output weights by
vocabulary; with sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198) what lies between the blocks is cut
along the sequence. Every parameter becomes a DTensor of the tensor parallel mesh, replicated where it is not cut, so
that one mesh holds them all.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from grpo.errors import ConfigError

_KEY = "policy.dtensor_cfg.tensor_parallel_size"


def check_tensor_parallel(model_config: Any, size: int) -> None:
    """Raise ConfigError where `size` ranks cannot share the heads or the MLP of a transformers config evenly."""
    shapes = {
        "num_attention_heads": model_config.num_attention_heads,
        "num_key_value_heads": model_config.num_key_value_heads,
        "intermediate_size": model_config.intermediate_size,
    }
    for name, value in shapes.items():
        if value % size:
            divisors = [each for each in range(1, value + 1) if all(other % each == 0 for other in shapes.values())]
            raise ConfigError(f"{_KEY}={size} does not divide the model's {name} of {value}; possible: {divisors}")
    if shard_range(model_config.vocab_size, size - 1, size)[0] >= model_config.vocab_size:
        raise ConfigError(f"{_KEY}={size} leaves a rank without any of the {model_config.vocab_size} words")


def tensor_parallel(model: PreTrainedModel, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut `model` over the ranks of the one-dimensional `mesh`, in place and without communication.

    Its decoder is called with all tokens on every rank and returns the hidden states of all of them; the gradient of
    those must be the whole one on every rank. With `sequence_parallel` the row width must be a multiple of the ranks.
    """
    tied = model.config.tie_word_embeddings
    plan = _plan(model.config.model_type, sequence_parallel=sequence_parallel, tied=tied)
    parallelize_module(model, mesh, plan, src_data_rank=None)
    if tied:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight  # type: ignore[no-untyped-call]


def _plan(model_type: str, *, sequence_parallel: bool, tied: bool) -> dict[str, ParallelStyle]:
    between = Shard(1) if sequence_parallel else Replicate()  # layout of the residual stream
    layer: dict[str, ParallelStyle] = {
        "input_layernorm": _norm(sequence_parallel=sequence_parallel),
        "post_attention_layernorm": _norm(sequence_parallel=sequence_parallel),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": between}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
        **{f"self_attn.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate_proj", "up_proj")},
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
        "mlp.down_proj": RowwiseParallel(output_layouts=between),
    }
    if model_type == "qwen3":  # one norm for all heads: each rank applies it to its own, [R, W, heads, D]
        layer |= {
            f"self_attn.{name}": SequenceParallel(sequence_dim=2, use_local_output=True)
            for name in ("q_norm", "k_norm")
        }
    plan: dict[str, ParallelStyle] = {f"model.layers.*.{name}": style for name, style in layer.items()}
    plan["model.embed_tokens"] = VocabularyParallelEmbedding(between)
    plan["model.norm"] = _norm(sequence_parallel=sequence_parallel, gather=sequence_parallel)
    if not tied:
        plan["lm_head"] = ColwiseParallel()  # never called: only its weight is used
    return plan


def _norm(*, sequence_parallel: bool, gather: bool = False) -> ParallelStyle:
    layout = Shard(1) if sequence_parallel else Replicate()
    return ReplicatedModule(layout, Replicate() if gather else layout)


class ReplicatedModule(ParallelStyle):
    """The same parameters on every rank; input and output are local tensors of the given layouts."""

    def __init__(self, input_layout: Shard | Replicate, output_layout: Shard | Replicate) -> None:
        super().__init__()
        self.input_layout, self.output_layout = input_layout, output_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def replicate(_name: str, part: nn.Module, mesh: DeviceMesh) -> None:
            _distribute_parameters(part, mesh, Replicate())

        def enter(_module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> DTensor:
            return DTensor.from_local(inputs[0], mesh, (self.input_layout,), run_check=False)

        def leave(_module: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Tensor:
            return output.redistribute(placements=(self.output_layout,)).to_local()

        return distribute_module(module, device_mesh, replicate, enter, leave)  # type: ignore[arg-type]


class VocabularyParallelEmbedding(ParallelStyle):
    """Each rank looks up the rows that it holds; the sum over ranks leaves in `output_layout`.

    torch's RowwiseParallel gives the padding row's number to every rank's own rows, so other tokens would lose their
    gradient; here it is given to the rank that holds it.
    """

    def __init__(self, output_layout: Shard | Replicate) -> None:
        super().__init__()
        self.output_layout = output_layout

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Embedding)
        _distribute_parameters(module, device_mesh, Shard(0))
        start, stop = shard_range(module.num_embeddings, device_mesh.get_local_rank(), device_mesh.size())
        padding = module.padding_idx
        own_padding = padding - start if padding is not None and start <= padding < stop else None

        def forward(tokens: Tensor) -> Tensor:
            weight = module.weight
            assert isinstance(weight, DTensor)
            own = (tokens >= start) & (tokens < stop)
            rows = embedding((tokens - start).where(own, 0), weight.to_local(), own_padding)
            partial = DTensor.from_local(rows.where(own[..., None], 0), device_mesh, (Partial(),), run_check=False)
            return partial.redistribute(placements=(self.output_layout,)).to_local()

        module.forward = forward  # type: ignore[method-assign, assignment]
        return module


def shard_range(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """First and past-the-last index of a rank where `size` is cut over `ranks`; the rule of torch.chunk and DTensor."""
    chunk = -(-size // ranks)
    return min(rank * chunk, size), min((rank + 1) * chunk, size)


def _distribute_parameters(module: nn.Module, mesh: DeviceMesh, placement: Shard | Replicate) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        cut = distribute_tensor(parameter.detach(), mesh, (placement,), src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
