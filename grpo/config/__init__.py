"""Configuration: recipes, inheritance, overrides, validation and the schema."""

from grpo.config.layout import Layout, layout
from grpo.config.load import ResolvedConfig, load_config
from grpo.config.render import render_set_by, render_yaml
from grpo.config.schema import Config

__all__ = ["Config", "Layout", "ResolvedConfig", "layout", "load_config", "render_set_by", "render_yaml"]
