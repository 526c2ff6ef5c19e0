import jinja2
import pytest

from grpo.telemetry.content import gather
from grpo.telemetry.html import render_html
from grpo.telemetry.reader import read_run
from tests.support.synthetic_run import write_synthetic_run


def test_both_themes_and_the_whole_configuration_are_in_the_page(tmp_path):
    content = gather(read_run(write_synthetic_run(tmp_path / "run", steps=2)))
    page = render_html(content, [], "seed: <7>\n")
    assert "prefers-color-scheme: dark" in page
    assert page.count("--phase-generation:") == 2
    assert "seed: &lt;7&gt;" in page


def test_a_template_variable_that_is_missing_is_an_error(tmp_path, monkeypatch):
    content = gather(read_run(write_synthetic_run(tmp_path / "run", steps=1)))
    object.__setattr__(content, "phases", [object()])
    with pytest.raises(jinja2.UndefinedError):
        render_html(content, [], "")
