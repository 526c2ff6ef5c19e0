import dataclasses
import json

import pytest
from typer.testing import CliRunner

from benchmarks import checkpoint
from benchmarks.checkpoint import BOUNDS, Round, judged, markdown, within

ROUND = Round(
    save_bytes=10**9, disk=1.0, sync_save=1.25, copy=0.1, staging=0.12, write=3.0, quiet_step=2.0, next_step=2.06,
)  # fmt: skip


def test_ratios_at_their_bounds_are_kept_and_beyond_are_not():
    found = judged([ROUND])
    assert {name: each.median for name, each in found.items()} == pytest.approx(
        {"sync save": 0.8, "staging": 1.2, "next step": 1.03}
    )
    assert all(within(name, each) for name, each in found.items())
    for name, field in {"sync save": "sync_save", "staging": "staging", "next step": "next_step"}.items():
        worse = dataclasses.replace(ROUND, **{field: getattr(ROUND, field) * 1.01})
        assert [other for other, each in judged([worse]).items() if not within(other, each)] == [name]


def test_every_ratio_is_of_one_round():
    slow = dataclasses.replace(ROUND, **{name: 7 * getattr(ROUND, name) for name in ("disk", "sync_save")})
    assert judged([ROUND, slow])["sync save"].low == pytest.approx(0.8)


def test_the_page_says_what_is_not_kept():
    page = markdown([dataclasses.replace(ROUND, staging=0.5)], judged([dataclasses.replace(ROUND, staging=0.5)]), {})
    assert page.count("NOT KEPT") == 1
    assert page.count("kept |") == len(BOUNDS) - 1
    assert "| plain copy | 0.100 s (0.100 to 0.100) | 10.00 GB/s |" in page


def test_without_saves_at_once_the_page_has_what_was_measured():
    part = dataclasses.replace(ROUND, disk=None, sync_save=None, write=None)
    assert set(judged([part])) == {"staging", "next step"}
    page = markdown([part], judged([part]), {"first staging": "0.01 s"})
    assert "- first staging: 0.01 s" in page
    assert "disk" not in page
    assert "files written" not in page


def test_a_whole_measurement_of_a_small_model(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_HIDDEN", 96)
    monkeypatch.setattr(checkpoint, "_VOCABULARY", 1200)
    options = ["--layers", "1", "--tokens", "16", "--rounds", "2", "--threads", "1", "--name", "small"]
    folders = ["--folder", str(tmp_path), "--out", str(tmp_path / "out")]
    code = CliRunner().invoke(checkpoint.app, [*options, *folders]).exit_code
    assert code in (0, 1), "1: a ratio out of its bounds, on a busy machine"
    body = json.loads((tmp_path / "out" / "small.json").read_text())
    assert len(body["rounds"]) == 2
    assert all(value > 0 for each in body["rounds"] for value in each.values())
    assert (tmp_path / "out" / "small.md").read_text().startswith("# Checkpoints: speed")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "what was saved is gone"
