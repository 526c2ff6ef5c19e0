from pathlib import Path

import pytest

from grpo.matrix.import_graph import ImportGraph

ROOT = Path(__file__).parents[3]
FILES = {
    "grpo/__init__.py": "",
    "grpo/__main__.py": "from grpo import cli",
    "grpo/cli.py": "def main():\n    import grpo.trainer.loop\n",
    "grpo/trainer/__init__.py": "from grpo.trainer import reexported",
    "grpo/trainer/reexported.py": "",
    "grpo/trainer/loop.py": "from .steps import step\nfrom ..maths import kl as k",
    "grpo/trainer/steps.py": "",
    "grpo/maths/__init__.py": "",
    "grpo/maths/kl.py": "",
    "grpo/maths/alone.py": "",
    "grpo/worker.py": "",
    "tests/conftest.py": "",
    "tests/unit/conftest.py": "import grpo.maths.alone",
    "tests/unit/test_a.py": "from grpo.maths.kl import f",
    "tests/unit/test_b.py": "subprocess.run([sys.executable, '-m', 'grpo', 'train'])",
    "tests/unit/test_c.py": "start('grpo.worker:main'); x = 'grpo.seed=1'; y = Literal['grpo', 'rloo']",
    "tests/unit/test_d.py": "Path(__file__).parent / 'helper.py'",
    "tests/unit/helper.py": "import grpo.trainer.steps",
}
UNIT = {
    "tests/conftest.py",
    "tests/unit/conftest.py",
    "grpo/__init__.py",
    "grpo/maths/__init__.py",
    "grpo/maths/alone.py",
}
TRAINER = {"grpo/trainer/__init__.py", "grpo/trainer/reexported.py"}
LOOP = TRAINER | {"grpo/trainer/loop.py", "grpo/trainer/steps.py", "grpo/maths/kl.py"}


@pytest.fixture
def graph(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ImportGraph(tmp_path)


@pytest.mark.parametrize(
    ("test", "needed"),
    [
        ("a", {"grpo/maths/kl.py"}),
        ("b", {"grpo/__main__.py", "grpo/cli.py"} | LOOP),
        ("c", {"grpo/worker.py"}),
        ("d", {"tests/unit/helper.py", "grpo/trainer/steps.py"} | TRAINER),
    ],
)  # fmt: skip
def test_what_a_test_needs(graph, test, needed):
    path = f"tests/unit/test_{test}.py"
    assert graph.closure(path) == {path} | UNIT | needed


def test_relative_imports_and_packages(graph):
    assert graph.needs["grpo/trainer/loop.py"] == {
        "grpo/__init__.py", "grpo/trainer/__init__.py", "grpo/trainer/steps.py", "grpo/maths/__init__.py",
        "grpo/maths/kl.py",
    }  # fmt: skip


def test_of_this_repository():
    graph = ImportGraph(ROOT)
    assert "grpo/algorithm/kl.py" in graph.closure("tests/unit/trainer/test_run.py")
    assert "grpo/algorithm/kl.py" not in graph.closure("tests/unit/batching/test_packing.py")
    assert "tests/support/group_workers.py" in graph.closure("tests/functional/workers/groups/test_ray_group.py")
