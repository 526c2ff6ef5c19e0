import pytest

from grpo.data.template import RecordTemplate, parse_wrapper
from grpo.errors import DataError

RECORD = {"q": "1+1", "n": 3, "metadata": {"word": "sun", "deep": {"x y": [5, 6]}}}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{q}=", "1+1="),
        ("{n} {metadata[word]}!", "3 sun!"),
        ("{metadata[deep][x y][1]}", "6"),
        ("\\boxed{{}} {q} {{{n}}}", "\\boxed{} 1+1 {3}"),
    ],
)
def test_fields_and_keys_are_filled_in(template, text):
    assert RecordTemplate.parse(template, key="k").render(RECORD, "f:1") == text


@pytest.mark.parametrize(
    "template",
    ["{q.__class__}", "{metadata[word].upper}", "{q!r}", "{n:>10}", "{}", "{n:{q}}", "{metadata[]}", "{[q]}"],
)
def test_anything_else_is_refused(template):
    with pytest.raises(DataError, match=r"^k: .*'{field}' and '{field\[key\]}'"):
        RecordTemplate.parse(template, key="k")


@pytest.mark.parametrize("template", ["{q", "q}", "no field {{q}}", ""])
def test_broken_templates_name_the_key(template):
    with pytest.raises(DataError, match=r"^k: "):
        RecordTemplate.parse(template, key="k")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{question}", r"f:7: .*{question}; there is: q, n, metadata"),
        ("{metadata[size]}", r"{metadata\[size\]}; there is: word, deep"),
        ("{q[0]}", r"{q\[0\]}; there is: str"),
    ],
)
def test_missing_field_lists_what_there_is(template, message):
    with pytest.raises(DataError, match=message):
        RecordTemplate.parse(template, key="k").render(RECORD, "f:7")


def test_values_of_a_record_are_never_templates_themselves():
    assert RecordTemplate.parse("{q}", key="k").render({"q": "{n} {0.__class__}"}, "f:1") == "{n} {0.__class__}"


def test_wrapper_has_one_place():
    assert parse_wrapper("Put it in \\boxed{{}}.\n{}\nGo.", key="k") == ("Put it in \\boxed{}.\n", "\nGo.")


@pytest.mark.parametrize("text", ["none", "{} {}", "{q}", "{0}", "{", "{!r}"])
def test_wrapper_without_one_place_is_refused(text):
    with pytest.raises(DataError, match=r"^k: "):
        parse_wrapper(text, key="k")
