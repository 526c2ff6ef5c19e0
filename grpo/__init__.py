"""A GRPO trainer for language models and the layered test matrix that keeps it right."""

__version__ = "0.1.0"
