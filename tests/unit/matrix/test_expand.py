import pytest

from grpo.config.tree import plain
from grpo.config.yaml_format import read
from grpo.errors import MatrixError
from grpo.matrix.expand import expand

DEFAULTS = "{steps: 5, overrides: [a=1], checks: {present: [x]}}"


def expanded(text, defaults=DEFAULTS):
    trees = [read(one, origin="f.yaml", lines=True) for one in (text, defaults)]
    return {name: plain(tree) for name, tree in expand("c", *trees)}


def test_a_case_without_axes_is_itself_over_the_defaults():
    cases = expanded("{overrides: [b=2], checks: {bounds: {}}}")
    assert cases == {"c": {"steps": 5, "overrides": ["a=1", "b=2"], "checks": {"present": ["x"], "bounds": {}}}}


def test_axes_are_a_product_without_what_is_excluded():
    cases = expanded(
        """
axes:
  loss: {clipped: {}, gspo: {overrides: [loss=gspo]}}
  size: {one: {}, two: {overrides: [size=2], steps: 9}, six: {}}
exclude:
  too long: {loss: gspo, size: six}
"""
    )
    assert list(cases) == ["c-clipped-one", "c-clipped-two", "c-clipped-six", "c-gspo-one", "c-gspo-two"]
    assert cases["c-gspo-two"]["overrides"] == ["a=1", "loss=gspo", "size=2"]
    assert cases["c-gspo-two"]["steps"] == 9
    assert cases["c-clipped-one"] == {"steps": 5, "overrides": ["a=1"], "checks": {"present": ["x"]}}


def test_excluding_a_value_of_one_axis_takes_out_all_its_products():
    cases = expanded("{axes: {a: {x: {}, y: {}}, b: {u: {}, v: {}}}, exclude: {why: {a: y}}}")
    assert list(cases) == ["c-x-u", "c-x-v"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{axes: {a: {x: {}}}, exclude: {why: {b: x}}}", "unknown axis b"),
        ("{axes: {loss: {x: {}}}, exclude: {why: {los: x}}}", r"did you mean loss\?"),
        ("{axes: {a: {x: {}}}, exclude: {why: {a: z}}}", "axis a has no value 'z'; it has x"),
        ("{axes: {a: {x: {}}}, exclude: {why: {}}}", "names no axis"),
        ("{axes: {a: {x: {}, y: {}}, b: {u: {}}}, exclude: {p: {a: y}, q: {a: [y]}}}", "no value"),
        ("{exclude: {why: {a: y}}}", "exclude without axes"),
        ("{axes: {a: {}}}", "axes.a has no values"),
        ("{axes: [a]}", "axes: expected a mapping"),
        ("{axes: {a: {x: 1}}}", "expected a mapping of keys of a case"),
        ("{axes: {a: {x: {overrides: b}}}}", "overrides: expected a list"),
    ],
)
def test_errors_name_the_line(text, message):
    with pytest.raises(MatrixError, match=rf"^f\.yaml:1: .*{message}"):
        expanded(text)
