"""Which files a Python file needs: the imports of the repository's own modules, read without running anything."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

ROOTS = ("grpo", "tests", "benchmarks", "ci")
# Text that may name a module: "grpo.workers.x", "tests.support.scoring:reward".
_DOTTED = re.compile(r"([a-z_][a-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+)(?::\w+)?")


class ImportGraph:
    """Over all Python files below the root's own packages; paths are relative to the root, with slashes.

    An import anywhere in a file counts, also inside a function; so does a text that is a module's name, since worker
    processes, user functions and `python -m` name modules so, and in a test one that is a file's.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Path by module name."""
        found = {}
        for top in ROOTS:
            for path in sorted((self.root / top).rglob("*.py")):
                relative = path.relative_to(self.root)
                parts = list(relative.with_suffix("").parts)
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = relative.as_posix()
        return found

    @cached_property
    def files(self) -> frozenset[str]:
        return frozenset(self.modules.values())

    @cached_property
    def needs(self) -> Mapping[str, frozenset[str]]:
        """The files that each file imports itself."""
        return {path: frozenset(self._imported(name, path)) - {path} for name, path in self.modules.items()}

    def closure(self, path: str) -> frozenset[str]:
        """The file and all that it needs, over any number of steps."""
        seen, ahead = {path}, [path]
        while ahead:
            for needed in self.needs.get(ahead.pop(), ()):
                if needed not in seen:
                    seen.add(needed)
                    ahead.append(needed)
        return frozenset(seen)

    def _imported(self, module: str, path: str) -> Iterator[str]:
        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        for node in ast.walk(ast.parse((self.root / path).read_text(encoding="utf-8"))):
            for name in _names(node, package):
                yield from self._with_parents(name)
            if path.startswith("tests/"):
                yield from self._scripts(node, path)
        yield from self._conftests(path)

    def _scripts(self, node: ast.AST, path: str) -> Iterator[str]:
        """Files that a test names, to run them: by their path, or beside it."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".py"):
            beside = (Path(path).parent / node.value).as_posix()
            yield from self.files.intersection((node.value, beside))

    def _with_parents(self, name: str) -> Iterator[str]:
        """The longest part of a dotted name that is a module, the packages around it, and its `__main__`."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if prefix in self.modules:
                yield self.modules[prefix]
        if f"{name}.__main__" in self.modules:
            yield self.modules[f"{name}.__main__"]

    def _conftests(self, path: str) -> Iterator[str]:
        if path.startswith("tests/"):
            for folder in Path(path).parents:
                beside = (folder / "conftest.py").as_posix()
                if beside in self.files:
                    yield beside


def _names(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module or "") if part)
        yield from (f"{module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = _DOTTED.fullmatch(node.value)
        if found:
            yield found[1]
    elif isinstance(node, ast.List):
        # Commands: ["grpo", "train"], [python, "-m", "grpo", "train"].
        words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
        yield from (str(word) for before, word in zip(["-m", *words], words, strict=False) if before == "-m" and word)
