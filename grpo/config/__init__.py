"""Configuration: recipes, inheritance, overrides, validation and the schema."""

from grpo.config.load import ResolvedConfig, load_config
from grpo.config.schema import Config

__all__ = ["Config", "ResolvedConfig", "load_config"]
