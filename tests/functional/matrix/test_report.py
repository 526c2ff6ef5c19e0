"""The matrix's page in a real browser, at the widths of a desk and of a phone."""

import datetime as dt
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from grpo.matrix.history import TestTime
from grpo.matrix.load import load_matrix
from grpo.matrix.report import write_matrix_report
from tests.support.html_page import Page
from tests.support.synthetic_history import whole_history

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
# The page is put into a frame of the wanted width, since a browser without a screen has a least width of its own.
MEASURE = """<!DOCTYPE html><iframe id="page" style="width: WIDTHpx; height: 900px; border: 0" srcdoc="PAGE"></iframe>
<script>
const seen = document.getElementById("page");
seen.onload = () => {
  const page = seen.contentDocument, box = (one) => one.getBoundingClientRect();
  const shown = [...page.querySelectorAll(".verdict")];
  const colors = new Set(shown.map((one) => seen.contentWindow.getComputedStyle(one).color));
  document.body.innerHTML = "<pre>" + JSON.stringify({
    width: page.documentElement.scrollWidth,
    height: page.documentElement.scrollHeight,
    pictures: [...page.querySelectorAll("figure svg")].map((one) => Math.round(box(one).width)),
    beyond: [...page.querySelectorAll("h1, h2, h3, .tile, figure, .card")]
      .filter((one) => box(one).right > WIDTH + 1).length,
    small: shown.filter((one) => box(one).height < 15).length,
    colors: colors.size,
  }) + "</pre>";
};
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    matrix = load_matrix(Path(__file__).parents[3] / "matrices")
    tests = [TestTime("trainer", "tests.functional.trainer.test_x::test_of_a_long_name" * 3, 12.5, "passed")]
    now = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    path, _ = write_matrix_report(matrix, whole_history(), tests, tmp_path_factory.mktemp("page"), now)
    return path


def test_the_page_is_whole(page):
    seen = Page(page.read_text(encoding="utf-8"))
    assert seen.tags.count("svg") == 6
    assert seen.headings[0] == "The test matrix"


@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_all_of_it_within_its_width(page, tmp_path, width):
    frame = tmp_path / "frame.html"
    text = MEASURE.replace("WIDTH", str(width)).replace("PAGE", html.escape(page.read_text(encoding="utf-8")))
    frame.write_text(text, encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1400,1000",
    ]
    done = subprocess.run(
        [BROWSER, *flags, "--virtual-time-budget=10000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found = re.search(r"<pre>(.*?)</pre>", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seen = json.loads(found[1])
    assert seen["width"] <= width
    assert seen["beyond"] == 0
    assert len(seen["pictures"]) == 6
    assert all(250 <= picture <= width for picture in seen["pictures"])
    assert seen["small"] == 0
    assert seen["colors"] == 5
    assert seen["height"] > 2000
