"""Two runs on one machine do not meet, and one that is killed leaves nothing."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.functional.workers.groups.conftest import gone

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ray-own")]
ROOT = Path(__file__).parents[4]


class Driver:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.group_driver"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def hear(self):
        """The next line that it says; other lines are Ray's."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the driver has ended")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def descendants(self):
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def end(self):
        self.process.kill()
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()


def test_runs_do_not_meet_and_a_killed_driver_leaves_no_process():
    first, second = Driver(), Driver()
    try:
        places = [first.hear(), second.hear()]
        assert places[0]["port"] != places[1]["port"]
        assert places[0]["folder"] != places[1]["folder"]
        first.tell("hang")
        assert first.hear() == {"hanging": True}
        second.tell("reduce")
        assert second.hear() == {"result": [11.0, 11.0]}
        left = first.descendants()
        assert set(places[0]["pids"]) <= set(left)
        first.process.kill()
        assert gone(left)
        second.tell("reduce")
        assert second.hear() == {"result": [11.0, 11.0]}
        own = second.descendants()
        second.tell("end")
        assert second.process.wait(60) == 0
        assert gone(own)
        assert not Path(places[1]["folder"]).exists()
    finally:
        first.end()
        second.end()
