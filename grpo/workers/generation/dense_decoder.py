"""Decoding of dense Llama-like models straight from their weights, without transformers' cost per forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from grpo.workers.generation.engine_weights import EngineWeights

# Their frequencies do not depend on the length of the sequence, so that one table serves all of it.
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def supports(model: PreTrainedModel) -> bool:
    """Llama 3.x, Qwen 2.5 and Qwen 3 dense, with full attention and rotary frequencies that do not change."""
    config: Any = model.config
    return (
        type(model) in (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
        and config.rope_parameters["rope_type"] in STATIC_ROPE
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
    )


def fused_names(model: PreTrainedModel) -> list[list[str]]:
    """Parameters that the decoder uses as one: the projections of queries, keys and values, and of gate and up."""
    present = dict(model.named_parameters())
    groups = []
    for index in range(model.config.num_hidden_layers):
        layer = f"model.layers.{index}"
        groups.append([f"{layer}.self_attn.{part}_proj.weight" for part in "qkv"])
        groups.append([f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")])
        biases = [f"{layer}.self_attn.{part}_proj.bias" for part in "qkv"]
        if biases[0] in present:
            groups.append(biases)
    return groups


@dataclass(frozen=True)
class _Layer:
    """One layer's weights; matrices are transposed views, [in, out]."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class DenseDecoder:
    """A `Decoder` over the weights of an `EngineWeights` whose groups are `fused_names`.

    Keys and values lie in [rows x KV heads, columns, head size], allocated once for prompt and completion. The query
    heads that share a KV head are the rows of one matrix product with it.
    """

    def __init__(self, model: PreTrainedModel, weights: EngineWeights) -> None:
        config: Any = model.config
        self._rotary: Any = model.model.rotary_emb
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._scale = self._head_size**-0.5
        self._eps: float = config.rms_norm_eps
        self._num_layers: int = config.num_hidden_layers
        self._weights = weights
        self._present = {name for name, _ in model.named_parameters()}
        self.bind()
        self.clear()

    def bind(self) -> None:
        """Look the weights up again after they were replaced."""
        block = self._weights.block
        self._embedding = block("model.embed_tokens.weight")
        self._norm = block("model.norm.weight")
        self._head = block("lm_head.weight").t()
        self._layers = [self._layer(f"model.layers.{index}") for index in range(self._num_layers)]

    def _layer(self, name: str) -> _Layer:
        block, attention = self._weights.block, f"{name}.self_attn"

        def optional(*names: str) -> Tensor | None:
            return block(*names) if names[0] in self._present else None

        return _Layer(
            input_norm=block(f"{name}.input_layernorm.weight"),
            qkv=block(*(f"{attention}.{part}_proj.weight" for part in "qkv")).t(),
            qkv_bias=optional(*(f"{attention}.{part}_proj.bias" for part in "qkv")),
            q_norm=optional(f"{attention}.q_norm.weight"),
            k_norm=optional(f"{attention}.k_norm.weight"),
            output=block(f"{attention}.o_proj.weight").t(),
            output_bias=optional(f"{attention}.o_proj.bias"),
            mlp_norm=block(f"{name}.post_attention_layernorm.weight"),
            gate_up=block(*(f"{name}.mlp.{part}_proj.weight" for part in ("gate", "up"))).t(),
            down=block(f"{name}.mlp.down_proj.weight").t(),
        )

    def clear(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._mask: Tensor | None = None
        self._cos = self._sin = torch.empty(0)
        self._positions: Tensor | None = None
        self._padding: Tensor | None = None
        self._column = 0  # where the next token goes

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        self.clear()
        prompts, width = tokens.shape
        padding = width - lengths
        ragged = bool(padding.any())
        columns = torch.arange(width, device=tokens.device)
        mask = None
        if ragged:
            causal = columns[:, None] >= columns
            mask = (causal & (columns >= padding[:, None, None]))[:, None]
        positions = (columns - padding[:, None]).clamp(min=0) if ragged else columns[None]
        hidden = functional.embedding(tokens, self._embedding)
        cos, sin = self._rotation(hidden, positions)
        cos, sin = cos[:, :, None], sin[:, :, None]
        for layer in self._layers:
            queries, keys, values = self._project(layer, hidden, cos, sin)
            keys, values = keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()
            attended = functional.scaled_dot_product_attention(
                queries.transpose(1, 2), keys, values, attn_mask=mask, is_causal=mask is None and width > 1,
                scale=self._scale, enable_gqa=self._heads != self._kv_heads,
            )  # fmt: skip
            hidden = self._finish(layer, hidden, attended.transpose(1, 2).reshape(prompts, width, -1))
            self._keys.append(keys)
            self._values.append(values)
        self._column = width
        self._padding = padding if ragged else None
        return self._logits(hidden[:, -1])

    def fan_out(self, rows: Tensor, new_tokens: int) -> None:
        width, columns = self._column, self._column + new_tokens
        shape = (len(rows) * self._kv_heads, columns, self._head_size)
        for stored in (self._keys, self._values):
            for index, prompt_part in enumerate(stored):
                cache = prompt_part.new_empty(shape)
                cache[:, :width] = prompt_part[rows].flatten(0, 1)
                stored[index] = cache
        positions = torch.arange(columns, device=rows.device)
        self._cos, self._sin = (table[0] for table in self._rotation(self._embedding, positions[None]))
        if self._padding is not None:
            padding = self._padding[rows]
            self._positions = width - padding
            hidden_columns = positions < padding[:, None]
            mask = self._embedding.new_zeros(len(rows), 1, columns).masked_fill_(hidden_columns[:, None], -torch.inf)
            self._mask = mask.repeat_interleave(self._kv_heads, 0)

    def step(self, tokens: Tensor) -> Tensor:
        hidden = functional.embedding(tokens, self._embedding)
        if self._positions is None:
            cos, sin = self._cos[self._column], self._sin[self._column]
        else:
            cos, sin = self._cos[self._positions][:, None], self._sin[self._positions][:, None]
            self._positions = self._positions + 1
        end = self._column + 1
        shape = (len(tokens), self._kv_heads, -1, self._head_size)
        mask = None if self._mask is None else self._mask[:, :, :end]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            queries, key, value = self._project(layer, hidden, cos, sin)
            keys.view(shape)[:, :, self._column] = key
            values.view(shape)[:, :, self._column] = value
            grouped = (queries * self._scale).reshape(len(keys), -1, self._head_size)
            scores = torch.bmm(grouped, keys[:, :end].transpose(1, 2))
            if mask is not None:
                scores += mask
            shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
            attended = torch.bmm(shares, values[:, :end])
            hidden = self._finish(layer, hidden, attended.view(len(tokens), -1))
        self._column = end
        return self._logits(hidden)

    def keep(self, rows: Tensor) -> None:
        def select(cache: Tensor) -> Tensor:
            return cache.view(-1, self._kv_heads, *cache.shape[1:])[rows].flatten(0, 1)

        self._keys = [select(cache) for cache in self._keys]
        self._values = [select(cache) for cache in self._values]
        if self._mask is not None:
            self._mask = select(self._mask)
        if self._positions is not None:
            self._positions = self._positions[rows]

    def _rotation(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of `rotate_half` in them, each [..., head size]."""
        cos, sin = self._rotary(like, positions)
        half = self._head_size // 2
        return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)

    def _project(self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., hidden] -> queries [..., heads, size] and keys [..., KV heads, size], rotated, and values like keys."""
        normed = functional.rms_norm(hidden, layer.input_norm.shape, layer.input_norm, self._eps)
        projected = normed @ layer.qkv if layer.qkv_bias is None else _affine(layer.qkv_bias, normed, layer.qkv)
        heads = projected.view(*projected.shape[:-1], -1, self._head_size)
        rotated, values = torch.split(heads, [self._heads + self._kv_heads, self._kv_heads], -2)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, keys = torch.split(rotated, [self._heads, self._kv_heads], -2)
            queries = functional.rms_norm(queries, layer.q_norm.shape, layer.q_norm, self._eps)
            keys = functional.rms_norm(keys, layer.k_norm.shape, layer.k_norm, self._eps)
            rotated = torch.cat((queries, keys), -2)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._head_size // 2, -1), sin)
        queries, keys = torch.split(rotated, [self._heads, self._kv_heads], -2)
        return queries, keys, values

    def _finish(self, layer: _Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = _affine(hidden, attended, layer.output)
        if layer.output_bias is not None:
            hidden = hidden + layer.output_bias
        normed = functional.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self._eps)
        gate, up = (normed @ layer.gate_up).chunk(2, -1)
        return _affine(hidden, functional.silu(gate).mul_(up), layer.down)

    def _logits(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden, self._norm.shape, self._norm, self._eps) @ self._head


def _affine(added: Tensor, inputs: Tensor, matrix: Tensor) -> Tensor:
    """The product of inputs and matrix over the last dimension, plus what is added."""
    if inputs.dim() == 2:
        return torch.addmm(added, inputs, matrix)
    return added + inputs @ matrix
