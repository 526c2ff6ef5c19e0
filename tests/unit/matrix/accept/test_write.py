import datetime as dt

import pytest

from grpo.matrix.accept.merge import merge
from grpo.matrix.accept.write import reference_yaml
from grpo.matrix.load import read_reference
from tests.support.judged import judged
from tests.support.matrix import case, measured, published, unmeasured


@pytest.mark.parametrize(
    "reference",
    [
        measured(stack={"torch": "2.10", "cuda": "13"}),
        published(),
        unmeasured(),
        merge([judged(f"r{at}") for at in range(3)], case(), today=dt.date(2026, 11, 30), approved_by='A "B": {c}, #d'),
    ],
    ids=["measured", "published", "none", "merged"],
)
def test_what_is_written_reads_back_the_same(reference, tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(reference_yaml(reference, comment="two\nlines"))
    assert read_reference(path) == reference
    assert path.read_text().startswith("# two\n# lines\nschema_version: 2\n")
