import re

import pytest
import yaml

from grpo.errors import TelemetryError
from grpo.telemetry.content import MAX_EVENTS
from grpo.telemetry.report import write_report
from grpo.telemetry.run_directory import RunDirectory
from tests.support.html_page import Page
from tests.support.synthetic_run import write_synthetic_run

ATTACK = "<script>alert(1)</script> <img src=x onerror=alert(1)> ![x](http://h/y) | ` ${7*7} {{7*7}}"


def report(path):
    page, document = write_report(path)
    return Page(page.read_text(encoding="utf-8")), document.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_synthetic_run(tmp_path_factory.mktemp("report") / "run", steps=60, seed=1)


@pytest.fixture(scope="module")
def reported(folder):
    return report(folder)


def test_every_section_is_there(folder, reported):
    page, document = reported
    sections = ["Figures", "Time by phase", "Samples", "Configuration and environment", "Events"]
    assert page.headings == ["synthetic", *sections]
    assert page.tags.count("svg") == 12
    for section in ("Key numbers", "Figures", "Time by phase", "Configuration", "Samples", "Events", "Environment"):
        assert f"\n## {section}\n" in document
    for name in re.findall(r"\]\((figures/\w+\.svg)\)", document):
        assert (folder / name).is_file()


def test_nothing_is_loaded_from_elsewhere(reported):
    page, _ = reported
    assert {"script", "link", "iframe", "img"}.isdisjoint(page.tags)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "action")]
    assert [link for link in links if not link.startswith("#")] == []
    assert ("http-equiv", "Content-Security-Policy") in page.attributes
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_texts_of_a_run_are_never_markup(tmp_path):
    config = yaml.safe_dump({"policy": {"model_name": ATTACK}})
    facts = {"model": ATTACK, "recipe": ATTACK}
    run = RunDirectory.open(tmp_path / "run", "new", name=ATTACK, config_yaml=config, command=[ATTACK], facts=facts)
    run.write_metrics(1, {"train/reward": 0.5, "timing/total": 1.0, ATTACK: float("nan")})
    run.write_sample(1, prompt=ATTACK, completion=ATTACK, **{ATTACK: ATTACK})
    run.write_event("warning", message=ATTACK, **{ATTACK: ATTACK})
    run.write_nodes([{"host": ATTACK, "gpus": [{"name": ATTACK}]}])
    run.finish("failed", reason=ATTACK, exit_code=1)
    page, document = report(run.path)
    assert {"script", "img"}.isdisjoint(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert page.headings[0] == ATTACK
    assert "<script" not in document
    assert "<img" not in document
    assert "![x]" not in document
    rows = [line for line in document.splitlines() if line.startswith("| policy.model")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 3


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("failed", "has failed (exit code 1): RuntimeError: the worker of rank 0 died"),
        ("stopped", "was stopped (exit code 85): SIGTERM"),
        ("running", "still running"),
        ("completed", "completed"),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_any_run_has_a_report(tmp_path, monkeypatch, outcome, words, steps):
    monkeypatch.setattr("grpo.telemetry.report.draw_figures", lambda run: [])  # test_figures draws short runs
    _, document = report(write_synthetic_run(tmp_path / "run", steps=steps, outcome=outcome))
    assert words in document
    assert ("No step was finished yet" in document) == (steps == 0)


def test_a_run_of_one_step_has_its_pictures(tmp_path):
    page, _ = report(write_synthetic_run(tmp_path / "run", steps=1, outcome="running"))
    assert page.tags.count("svg") == 12


def test_many_events_are_cut_with_their_number(tmp_path):
    run = RunDirectory.open(tmp_path / "run", "new", name="n", config_yaml="a: 1", command=[])
    for number in range(MAX_EVENTS + 10):
        run.write_event("warning", message=f"warning {number}")
    run.finish("completed")
    _, document = report(run.path)
    assert "12 earlier events left out." in document
    assert f"warning {MAX_EVENTS + 9}" in document
    assert "message warning 10 " not in document


def test_a_report_is_drawn_again_and_elsewhere(tmp_path):
    run = write_synthetic_run(tmp_path / "run", steps=1, without=("train", "rollout", "memory", "performance"))
    write_report(run)
    page, document = write_report(run, tmp_path / "out" / "deep")
    assert page == tmp_path / "out" / "deep" / "report.html"
    assert document.is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match="cannot write"):
        write_report(run, tmp_path / "file")
    with pytest.raises(TelemetryError, match="no run directory"):
        write_report(tmp_path)


def test_the_markdown_of_a_run(reported, snapshot):
    _, document = reported
    numbers = document[: document.index("## Events")]
    assert re.sub(r"started [\d: UTC-]+", "started DATE", numbers) == snapshot
