import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.values import decode_values, encode_values
from grpo.errors import CheckpointError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(st.dictionaries(st.text(), JSON))
@settings(deadline=None)
def test_values_come_back_exactly(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "values.json"
    path.write_bytes(encode_values(values))
    back = decode_values(path)
    assert back == values
    assert repr(back) == repr(values)


def test_non_finite_numbers_and_lone_surrogates_come_back(tmp_path):
    values = {"best": -float("inf"), "loss": float("nan"), "text": "\ud800"}
    (tmp_path / "v").write_bytes(encode_values(values))
    assert repr(decode_values(tmp_path / "v")) == repr(values)


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"a": {1: 2}}, r"values\['a'\] has the key 1, a int"),
        ({"a": [0, {"b": (1,)}]}, r"values\['a'\]\[1\]\['b'\] is a tuple"),
        ({"a": {1, 2}}, r"values\['a'\] is a set"),
        ({"a": b"x"}, r"values\['a'\] is a bytes"),
    ],
)
def test_what_json_would_change_is_refused_by_place(values, place):
    with pytest.raises(CheckpointError, match=place):
        encode_values(values)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\x80\x04.", None])
def test_unreadable_values_are_refused_by_name(tmp_path, content):
    path = tmp_path / "values.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=r"values\.json"):
        decode_values(path)
