from decimal import Decimal

import pytest

from grpo.data.sources.record import examples, numbered
from grpo.errors import DataError

CHAT = [{"role": "user", "content": "a"}]


def read(records, *, input_key="prompt", output_key="answer", template=None, max_samples=None):
    return examples(
        numbered(records, "d"),
        input_key=input_key,
        output_key=output_key,
        prompt_template=template,
        max_samples=max_samples,
        key="data.train",
    )


@pytest.mark.parametrize(
    ("value", "answer"),
    [("7", "7"), (7, "7"), (0.5, "0.5"), (Decimal("1.50"), "1.50"), (True, "True"), (None, None), ("", "")],
)
def test_answers_become_text(value, answer):
    assert read([{"prompt": "a", "answer": value}])[0].answer == answer


def test_names_and_records_are_kept():
    found = read([{"prompt": "a", "extra": [1]}, {"prompt": CHAT}])
    assert [e.example_id for e in found] == ["d:0", "d:1"]
    assert found[0].record == {"prompt": "a", "extra": [1]}
    assert found[1].prompt == CHAT


def test_only_role_and_content_of_a_chat_are_used():
    assert read([{"prompt": [{"role": "user", "content": "a", "name": "x"}]}])[0].prompt == CHAT


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"question": "a", "solution": "b"},
            r"d:1: there is no column 'prompt' \(data.train.input_key\); the columns are: question, solution",
        ),
        ({"prompt": "  \n"}, "d:1: the prompt in column 'prompt' is empty"),
        ({"prompt": 3}, "d:1: column 'prompt' holds int 3; wanted: a text, or a chat"),
        ({"prompt": []}, "d:1: column 'prompt' holds list"),
        ({"prompt": [{"role": "user"}]}, "d:1: column 'prompt' holds list"),
        ({"prompt": [{"role": "user", "content": None}]}, "d:1: column 'prompt' holds list"),
        (
            {"prompt": "a", "answer": ["7"]},
            r"d:1: the answer in column 'answer' is list \['7'\]; wanted: a text, a number",
        ),
    ],
)
def test_bad_record_is_named(record, message):
    with pytest.raises(DataError, match=message):
        read([{"prompt": "a"}, record])


def test_answer_column_that_no_record_has():
    assert read([{"prompt": "a"}])[0].answer is None
    assert [e.answer for e in read([{"prompt": "a"}, {"prompt": "b", "s": 1}], output_key="s")] == [None, "1"]
    with pytest.raises(
        DataError, match=r"data.train.output_key: no record has the column 's'; the columns are: prompt, t"
    ):
        read([{"prompt": "a", "t": 1}], output_key="s")


def test_first_records_only():
    endless = ({"prompt": str(i)} for i in iter(int, 1))
    assert len(read(endless, max_samples=3)) == 3


def test_template_takes_the_place_of_the_prompt_column():
    assert read([{"q": "a", "answer": 1}], template="{q}={answer}")[0].prompt == "a=1"
