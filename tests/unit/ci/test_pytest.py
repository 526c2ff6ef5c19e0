"""What the layers rely on of pytest and its plugins."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_tests_of_a_group_run_in_one_process(pytester):
    """pytest 9.2.0 with xdist 3.8.0 ignores `--dist loadgroup` without a word: neither may be what runs here."""
    marks = "\n".join(
        f"""
@pytest.mark.xdist_group("g{number % 2}")
def test_{number}(worker_id):
    with open({str(pytester.path / "seen")!r}, "a") as out:
        out.write(f"g{number % 2} {{worker_id}}\\n")
"""
        for number in range(8)
    )
    pytester.makepyfile(f"import pytest\n{marks}")
    pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider").assert_outcomes(passed=8)
    seen = {tuple(line.split()) for line in (pytester.path / "seen").read_text().splitlines()}
    assert len(seen) == 2
    assert {group for group, _ in seen} == {"g0", "g1"}


def test_the_version_that_ignores_groups_is_excluded():
    assert any(
        "!=9.2.0" in one for one in SETTINGS["project"]["optional-dependencies"]["test"] if one.startswith("pytest>")
    )
    for lock in ("core", "cpu", "cuda"):
        assert "\npytest==9.2.0" not in (ROOT / "ci" / "locks" / f"{lock}.txt").read_text()


def test_no_test_is_run_again_when_it_fails():
    options = SETTINGS["tool"]["pytest"]["ini_options"]
    assert not re.search(r"rerun|flaky", options["addopts"])
    assert options["timeout"] > 0
    for lock in ("core", "cpu", "cuda"):
        assert not re.search(
            r"^(pytest-rerunfailures|flaky|pytest-retry)==", (ROOT / f"ci/locks/{lock}.txt").read_text(), re.MULTILINE
        )


def test_every_nightly_case_that_trains_is_left_to_the_night(pytestconfig):
    assert "-m 'not nightly'" in SETTINGS["tool"]["pytest"]["ini_options"]["addopts"]
    assert any(marker.startswith("nightly:") for marker in pytestconfig.getini("markers"))
