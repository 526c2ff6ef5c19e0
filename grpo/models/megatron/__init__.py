"""Megatron-Core models of the supported architectures: shapes, layer specifications, and names against transformers'."""
