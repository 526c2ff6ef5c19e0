import pytest

from grpo.telemetry.markdown import escape


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain 1.5 %", "plain 1.5 %"),
        ("a|b\nc", r"a\|b c"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("*x* _y_ `z` [l](u)", r"\*x\* \_y\_ \`z\` \[l\](u)"),
        ("back\\slash", r"back\\slash"),
    ],
)
def test_markdown_shows_texts_as_they_are(text, escaped):
    assert escape(text) == escaped
