import io

from rich.console import Console

from grpo.matrix.show.sheet import Grid, Sheet, sheet_markdown, sheet_table

SHEET = Sheet("heading <1>", ["a line"], [Grid("grid", ("", "x"), [("a|b", "1"), ("c", "2")])], ["a note"])


def test_on_a_terminal():
    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(sheet_table(SHEET))
    lines = console.file.getvalue().splitlines()
    assert lines[:3] == ["heading <1>", "a line", next(line for line in lines if line.startswith("grid"))]
    assert any("a|b" in line for line in lines)
    assert lines[-1] == "a note"


def test_as_markdown_nothing_breaks_the_table():
    assert sheet_markdown(SHEET) == (
        "### heading &lt;1>\n\n- a line\n\n**grid**\n\n|  | x |\n| --- | ---: |\n| a\\|b | 1 |\n| c | 2 |\n\n- a note\n"
    )


def test_a_heading_alone():
    assert sheet_markdown(Sheet("h")) == "### h\n"
