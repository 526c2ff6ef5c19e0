"""Every process of a pool is gone after `close`, after an error at the start, and after the trainer was killed."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grpo.config.schema import Env
from grpo.errors import RewardError
from grpo.rewards.request import RewardRequest
from grpo.rewards.scoring import Rewards

HERE = Path(__file__).parent

TRAINER = """
import os, sys
from grpo.rewards.pool import VerifierPool
from grpo.rewards.request import RewardRequest

if __name__ == "__main__":
    sys.path.insert(0, {here!r})
    pool = VerifierPool("user", "misbehaving:reward", {{}}, num_workers=2, timeout_s=1000.0, memory_limit_mb=512)
    pool.wait_until_ready()
    if {fork_first}:
        # A child of the trainer that outlives it and holds its files, as a loader's process may.
        if os.fork() == 0:
            sys.stdin.close()
            import time
            time.sleep(600)
            os._exit(0)
    print(pool.pid, flush=True)
    record = {{"notes": {notes!r}, "directory": os.getcwd()}}
    pool.score([RewardRequest("a", "", text, None, record) for text in {completions!r}])
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


def family(pid):
    supervisor = psutil.Process(pid)
    return [supervisor, *supervisor.children(recursive=True)]


def all_end(processes):
    _, alive = psutil.wait_procs(processes, timeout=30)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_close_leaves_no_process(tmp_path):
    record = {"notes": str(tmp_path), "directory": str(Path.cwd())}
    with Rewards({"user": Env(verifier="misbehaving:reward", num_workers=3, memory_limit_mb=512)}) as pools:
        processes = family(pools._scorers["user"].pid)
        assert len(processes) == 4
        pools.score([("user", RewardRequest("a", "", "daemonise", None, record))])
        processes += [psutil.Process(int(note.name)) for note in tmp_path.iterdir()]
        assert len(processes) == 5
        pools.close()
        assert all_end(processes)


def test_close_ends_what_another_thread_scores(tmp_path):
    """As when a run ends while a verifier hangs that may take longer than anybody would wait."""
    record = {"notes": str(tmp_path), "directory": str(Path.cwd())}
    requests = [("user", RewardRequest(str(number), "", "loop", None, record)) for number in range(4)]
    pools = Rewards({"user": Env(verifier="misbehaving:reward", timeout_s=10_000, memory_limit_mb=512)})
    with ThreadPoolExecutor(1) as thread:
        scores = thread.submit(pools.score, requests)
        processes = family(pools._scorers["user"].pid)
        while not pools._scorers["user"]._lock.locked():
            assert not scores.done()
        pools.close()
        with pytest.raises(RewardError, match="closed while it scored"):
            scores.result(30)
    assert all_end(processes)


@pytest.mark.parametrize("fork_first", [False, True], ids=["alone", "with a fork that lives on"])
def test_killed_trainer_leaves_no_process(tmp_path, fork_first):
    if fork_first and sys.platform != "linux":
        pytest.skip("needs Linux")
    program = TRAINER.format(
        here=str(HERE),
        notes=str(tmp_path),
        fork_first=fork_first,
        completions=["daemonise", "hang_with_child", "loop_in_c", "loop"],
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    try:
        supervisor = int(trainer.stdout.readline())
        while len(list(tmp_path.iterdir())) < 2:  # until the verifiers have left their processes; pytest has the limit
            assert trainer.poll() is None
        processes = family(supervisor)
        processes += [psutil.Process(int(note.name)) for note in tmp_path.iterdir()]
        assert len({process.pid for process in processes}) >= 5
        trainer.kill()
        assert all_end(processes)
    finally:
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()


def test_killed_supervisor_is_replaced():
    record = {"directory": str(Path.cwd())}
    requests = [("user", RewardRequest(str(i), "", f"good {i}", None, record)) for i in range(50)]
    with Rewards({"user": Env(verifier="misbehaving:reward", memory_limit_mb=512)}) as pools:
        processes = family(pools._scorers["user"].pid)
        processes[0].kill()
        assert [score.value for score in pools.score(requests)] == [float(i) for i in range(50)]
        assert sum(pools.counts.values()) == 0
        assert all_end(processes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import time\ntime.sleep(10_000)", "importing it took longer than 2 s"),
        ("10 ** 10**9", "importing it took longer than 2 s"),
        ("import os\nos._exit(7)", "ended with status 7"),
        ("import os\nos.closerange(0, 256)", "ended with status"),
        ("bytes(1 << 40)", "needs more than memory_limit_mb"),
    ],
)
def test_module_that_cannot_be_imported_is_an_error_at_the_start(tmp_path, monkeypatch, text, reason):
    (tmp_path / "broken_at_import.py").write_text(
        f"import os, pathlib\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n{text}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = Env(verifier="broken_at_import:reward")
    with pytest.raises(RewardError, match=reason) as error:
        Rewards({"mine": env}, start_timeout_s=2.0 if "longer" in reason else 60.0)
    assert "broken_at_import:reward" in str(error.value)
    pid_file = tmp_path / "pid"
    if pid_file.exists():  # else a busy machine did not get as far as the import
        assert not psutil.pid_exists(int(pid_file.read_text()))


def test_module_that_hangs_at_import_ends_after_the_trainer(tmp_path):
    note = tmp_path / "pid"
    (tmp_path / "hangs.py").write_text(
        f"import os, pathlib\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n10 ** 10**9\n"
    )
    program = (
        "import sys; from grpo.rewards.pool import VerifierPool\n"
        "VerifierPool('m', 'hangs:f', {}, num_workers=1, timeout_s=1.0, memory_limit_mb=512, start_timeout_s=2.0)\n"
        "sys.stdin.read()"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        while not (note.exists() and note.read_text()):
            assert trainer.poll() is None
        importer = psutil.Process(int(note.read_text()))
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdin.close()
    assert all_end([importer])
