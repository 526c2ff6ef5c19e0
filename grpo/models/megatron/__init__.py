"""Megatron-Core models of the supported architectures: shapes, layer specifications, names against transformers'."""
