"""Placement knows neither tensors nor engines: it imports none of them."""

import ast
import subprocess
import sys
from pathlib import Path

import grpo

PROGRAM = """
import sys
import grpo.placement.placement, grpo.placement.plan
print(sorted({"torch", "ray", "vllm", "transformers", "megatron"} & set(sys.modules)))
"""


def test_it_imports_no_torch_ray_or_vllm():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


def test_nothing_else_asks_workers_to_move_anything():
    root = Path(grpo.__file__).parent
    asked = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(f".{name}(" in path.read_text() for name in ("move", "wake", "sleep"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"move", "wake", "sleep"}
        and ast.unparse(node.func.value) != "time"
    }
    assert {path for path in asked if path.split("/")[0] != "workers"} == {"placement/placement.py"}


def test_memory_goes_back_to_the_driver_in_one_place():
    """It waits for the device: `release` alone does it, where the policy makes room for an engine's allocator."""
    root = Path(grpo.__file__).parent
    calls = {str(path.relative_to(root)) for path in root.rglob("*.py") if "empty_cache" in path.read_text()}
    assert calls == {"workers/offload/memory.py", "workers/megatron/cpu_shim.py"}
