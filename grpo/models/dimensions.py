"""The sizes of a decoder-only transformer that memory, FLOPs and traffic follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dimensions:
    """Of a dense Llama-like model: grouped-query attention, gated MLP with three matrices, RMSNorm."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    norms_heads: bool = False  # RMSNorm of each query and key head, as in Qwen 3

    @classmethod
    def of(cls, config: Any) -> Dimensions:
        """From a transformers config of model_type llama, qwen2 or qwen3."""
        values = config.to_dict()
        heads = int(values["num_attention_heads"])
        return cls(
            layers=int(values["num_hidden_layers"]),
            hidden=int(values["hidden_size"]),
            intermediate=int(values["intermediate_size"]),
            heads=heads,
            kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or values["hidden_size"] // heads),
            vocab=int(values["vocab_size"]),
            tied=bool(config.tie_word_embeddings),
            norms_heads=values["model_type"] == "qwen3",
        )

    @property
    def query_width(self) -> int:
        """All query heads side by side."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All key heads side by side, which is that of the value heads too."""
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of one layer that take part in matrix products: attention and MLP, without norms and biases."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Weights of the output layer, which multiply whether or not they are the embedding's."""
        return self.hidden * self.vocab
