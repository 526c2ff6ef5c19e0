"""The matrix knows the trainer by its configuration and its run directory alone."""

import ast
from pathlib import Path

import pytest

from grpo import matrix

FOREIGN = {"ray", "vllm", "torch", "transformers", "megatron"}
MEASURES = "canary"  # the one part that runs something itself: products and collectives
INNER = {"trainer", "workers", "rollout", "refit", "batching", "algorithm", "models", "rewards", "checkpoint"}


@pytest.mark.parametrize("path", sorted(Path(matrix.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_it_imports_neither_engines_nor_the_trainer_and_evaluates_no_text(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "compile", "__import__"}
        for name in names:
            parts = name.split(".")
            assert parts[0] not in FOREIGN - ({"torch"} if path.parent.name == MEASURES else set())
            assert parts[0] != "grpo" or len(parts) < 2 or parts[1] not in INNER, name
