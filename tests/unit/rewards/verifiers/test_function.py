import pytest

from grpo.errors import RewardError
from grpo.rewards.verifiers import load_verifier

MODULE = """
import functools

LIMIT = 3

def reward(prompt, completion, answer, record):
    return float(completion == answer) + record["bonus"]

def typed(prompt: str, completion: str, answer: str | None, record: dict) -> float:
    return 1.0

def short(completion, **_):
    return len(completion)

def scaled(prompt, completion, answer, record, scale):
    return scale * len(completion)

def two(prompt, completion):
    return 1.0

def positional(prompt, completion, answer, record, /):
    return 1.0

async def later(prompt, completion, answer, record):
    return 1.0

def generator(prompt, completion, answer, record):
    yield 1.0

class Judge:
    def __call__(self, prompt, completion, answer, record):
        return 2.0

    @staticmethod
    def static(prompt, completion, answer, record):
        return 3.0

judge = Judge()
"""
SAMPLE = {"prompt": "p", "completion": "abc", "answer": "abc", "record": {"bonus": 0.5}}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A new module a test, since an import is remembered."""
    name = "rewards_of_" + tmp_path.name.replace("-", "_").replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("function", "kwargs", "value"),
    [
        ("reward", {}, 1.5),
        ("typed", {}, 1.0),
        ("short", {}, 3),
        ("scaled", {"scale": 2}, 6),
        ("judge", {}, 2.0),
        ("Judge.static", {}, 3.0),
    ],
)
def test_loaded_function_is_called_by_keyword(module, function, kwargs, value):
    assert load_verifier(f"{module}:{function}", kwargs)(**SAMPLE) == value


@pytest.mark.parametrize(
    ("function", "kwargs", "reason"),
    [
        ("rewrad", {}, r"no function 'rewrad'; its functions: reward, typed,"),
        ("LIMIT", {}, "is a int, not a function"),
        ("two", {}, r"wrong signature: .*answer.*; wanted: def reward\(prompt: str, completion: str, answer"),
        ("positional", {}, "wrong signature"),
        ("scaled", {}, "wrong signature: missing a required argument: 'scale'"),
        ("reward", {"scale": 1}, "wrong signature: got an unexpected keyword argument 'scale'"),
        ("later", {}, "not async"),
        ("generator", {}, "not a generator"),
    ],
)
def test_function_that_cannot_be_called_is_refused(module, function, kwargs, reason):
    with pytest.raises(RewardError, match=reason):
        load_verifier(f"{module}:{function}", kwargs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_library_at_all", "failed: No module named 'no_such_library_at_all'"),
        ("x = 1 / 0", r"raised ZeroDivisionError: division by zero \(.*:1\)"),
        ("def f(:", "raised SyntaxError"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
    ],
)
def test_module_that_fails_is_reported_with_its_own_fault(tmp_path, monkeypatch, text, reason):
    name = f"failing_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RewardError, match=reason):
        load_verifier(f"{name}:f", {})


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module"])
def test_missing_module(name):
    with pytest.raises(RewardError, match=f"no module '{name}' in the current directory or the Python path"):
        load_verifier(f"{name}:reward", {})


@pytest.mark.parametrize("name", ["maths", "", ":", "module:", ":function"])
def test_unknown_name(name):
    with pytest.raises(
        RewardError, match="'math', 'reasoning_gym', 'exact_match', 'coin', or your own 'module:function'"
    ):
        load_verifier(name, {})
