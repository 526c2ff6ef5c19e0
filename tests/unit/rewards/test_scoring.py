"""Order, isolation between envs, counts. What misbehaving verifiers cost is in tests/functional/rewards."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo.config.schema import Env
from grpo.errors import RewardError
from grpo.rewards.request import RewardRequest, Score
from grpo.rewards.scoring import Rewards

MODULE = '''
import json, os, sys

def length(prompt, completion, answer, record, scale=1.0):
    return scale * len(completion)

def loop(prompt, completion, answer, record):
    return 10 ** 10 ** 8 if completion == "loop" else 1.0

def facts(prompt, completion, answer, record):
    """Each fact as a bit."""
    torch = "torch" in sys.modules
    secret = "A_SECRET" in os.environ
    heavy = [name for name in ("pydantic", "transformers", "numpy", "ray") if name in sys.modules]
    return torch + 2 * secret + 4 * bool(heavy) + 8 * (len(os.environ) > 20)

def fields(prompt, completion, answer, record):
    return float(
        (prompt, completion, answer, record) == ("p", "c", None, {"list": [1, 2], "nested": {"a": None}})
    )
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def request(completion, answer=None, **record):
    return RewardRequest(completion[:8], "p", completion, answer, record)


def test_order_over_several_envs(here):
    envs = {
        "length": Env(verifier="my_rewards:length", kwargs={"scale": 0.5}),
        "math": Env(verifier="math", num_workers=1),
        "same": Env(verifier="exact_match"),
    }
    requests = []
    expected = []
    for i in range(300):
        requests.append([
            ("length", request("x" * i)),
            ("math", request(f"\\boxed{{{i}}}", "\\frac{14}{2}")),
            ("same", request(str(i), str(i - i % 2))),
        ][i % 3])  # fmt: skip
        expected.append([0.5 * i, float(i == 7), float(i % 2 == 0)][i % 3])
    with Rewards(envs) as rewards:
        for _ in range(2):
            assert [score.value for score in rewards.score(requests)] == expected
        assert set(rewards.counts.values()) == {0}


def test_large_samples_and_none_at_all(here):
    sizes = [0, 1, 3_000_000, 2, 70_000, 5_000_000]
    with Rewards({"length": Env(verifier="my_rewards:length")}) as rewards:
        assert rewards.score([]) == []
        scores = rewards.score([("length", request("x" * size)) for size in sizes])
    assert [score.value for score in scores] == sizes


def test_verifier_that_loops_in_c_costs_its_sample_only(here):
    """Fault kind j2."""
    with Rewards({"loop": Env(verifier="my_rewards:loop", timeout_s=2.0)}) as rewards:
        scores = rewards.score([("loop", request(text)) for text in ("a", "loop", "b")])
        assert scores == [Score(1.0, None), Score(None, "timeout after 2 s"), Score(1.0, None)]
        assert rewards.counts["timeout"] == 1


def test_every_field_arrives(here):
    sample = RewardRequest("i", "p", "c", None, {"list": [1, 2], "nested": {"a": None}})
    with Rewards({"fields": Env(verifier="my_rewards:fields")}) as rewards:
        assert rewards.score([("fields", sample)]) == [Score(1.0, None)]


def test_record_that_cannot_be_sent_costs_its_sample(here):
    with Rewards({"length": Env(verifier="my_rewards:length")}) as rewards:
        good, bad = rewards.score([("length", request("abc")), ("length", request("abc", thing=lambda: 0))])
        assert good == Score(3.0, None)
        assert bad.value is None
        assert "cannot be sent" in bad.failure
        assert rewards.counts["error"] == 1


def test_from_several_threads(here):
    with Rewards({"length": Env(verifier="my_rewards:length"), "math": Env(verifier="math")}) as rewards:

        def score(i):
            pairs = [("length", request("x" * (i + j))) for j in range(30)] + [("math", request("1", "1"))]
            return [each.value for each in rewards.score(pairs)]

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(score, range(8)))
    assert results == [[*range(i, i + 30), 1.0] for i in range(8)]


def test_processes_are_light_and_see_no_secret(here, monkeypatch):
    monkeypatch.setenv("A_SECRET", "token")
    with Rewards({"facts": Env(verifier="my_rewards:facts")}) as rewards:
        assert rewards.score([("facts", request(""))]) == [Score(0.0, None)]


def test_import_closure_of_the_processes():
    program = "import sys, grpo.rewards.supervisor; print(len(sys.modules), *sorted(sys.modules))"
    count, *modules = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert int(count) < 150
    assert not {"torch", "numpy", "pydantic", "psutil", "math_verify", "grpo.config"} & set(modules)


def test_failing_exact_match_is_counted():
    with Rewards({"same": Env(verifier="exact_match")}) as rewards:
        assert rewards.score([("same", request("a")), ("same", request("a", "a"))])[1] == Score(1.0, None)
        assert rewards.counts["error"] == 1


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (Env(verifier="maths"), r"env\.mine: verifier 'maths'"),
        (Env(verifier="exact_match", kwargs={"tolerance": 1}), r"env\.mine: .*tolerance"),
        (Env(verifier="math", kwargs={"tolerance": 1}), r"env\.mine: .*tolerance"),
        (Env(verifier="my_rewards:lenght"), r"env\.mine: .*no function 'lenght'"),
        (Env(verifier="my_rewards:length", kwargs={"scael": 1}), r"env\.mine: .*wrong signature"),
        (Env(verifier="absent:length"), r"env\.mine: .*no module 'absent'"),
    ],
)
def test_verifier_that_cannot_be_loaded_is_an_error_at_the_start(here, env, reason):
    good = Env(verifier="my_rewards:length")
    with pytest.raises(RewardError, match=reason):
        Rewards({"first": good, "mine": env})


def test_start_in_the_background_raises_when_waited_for(here):
    rewards = Rewards({"mine": Env(verifier="absent:length")}, wait=False)
    with rewards, pytest.raises(RewardError, match="absent"):
        rewards.wait_until_ready()


def test_unknown_env():
    with Rewards({"same": Env(verifier="exact_match")}) as rewards, pytest.raises(RewardError, match=r"other.*same"):
        rewards.score([("other", request(""))])


def test_module_that_starts_a_thread_is_warned_of(here, tmp_path, caplog):
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def f(prompt, completion, answer, record): return 1.0\n"
    )
    with Rewards({"mine": Env(verifier="threaded:f")}) as rewards:
        assert rewards.score([("mine", request(""))]) == [Score(1.0, None)]
    assert "starts threads when it is imported" in caplog.text
