import stat

import pytest

from grpo.matrix.canary.nvidia import parse_state, query_fields, read_gpu, throttle_reasons

LINE = "1980, 1980, 45, 652.31, 0, 3, 0x0000000000000044\n"


def test_a_line_as_figures_and_words():
    assert parse_state(LINE) == {
        "sm_clock_mhz": 1980.0, "sm_clock_max_mhz": 1980.0, "temperature_c": 45.0, "power_w": 652.31,
        "ecc_uncorrected": 0.0, "ecc_corrected": 3.0, "throttle": ["power cap", "hardware thermal slowdown"],
    }  # fmt: skip


def test_what_a_gpu_does_not_have_is_left_out():
    state = parse_state("1980, 1980, 45, [N/A], [N/A], [Not Supported], 0x0000000000000000\n")
    assert "power_w" not in state
    assert "ecc_corrected" not in state
    assert state["throttle"] == []
    assert "throttle" not in parse_state("1980, 1980, 45, 1, 0, 0, [N/A]\n")


@pytest.mark.parametrize("output", ["", "\n", "No devices were found\n", "1,2\n"])
def test_other_output_is_nothing(output):
    assert parse_state(output) == {}


def test_reasons():
    assert throttle_reasons("0x1") == ["idle"]
    assert throttle_reasons("0x8") == ["hardware slowdown"]
    assert throttle_reasons("nothing") is None


def pretend(tmp_path, monkeypatch, script):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_an_older_driver_is_asked_by_the_older_name(tmp_path, monkeypatch):
    pretend(tmp_path, monkeypatch, f'case "$*" in *clocks_event*) exit 6;; *) echo "{LINE.strip()}";; esac')
    assert read_gpu("GPU-1")["temperature_c"] == 45.0
    assert query_fields("clocks_event_reasons.active").endswith(",clocks_event_reasons.active")


def test_without_the_program_or_with_one_that_fails_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert read_gpu("GPU-1") == {}
    pretend(tmp_path, monkeypatch, "exit 9")
    assert read_gpu("GPU-1") == {}
