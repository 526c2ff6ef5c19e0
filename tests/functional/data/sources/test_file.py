import pytest

from grpo.data.sources.file import file_records
from grpo.errors import DataError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def test_rows_of_a_parquet_file(tmp_path):
    file = tmp_path / "d.parquet"
    rows = [{"prompt": [{"role": "user", "content": str(i)}], "answer": i, "m": {"word": "x"}} for i in range(10_000)]
    parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=3000)
    found = list(file_records(str(file), key="k"))
    assert [record for _, record in found] == rows
    assert found[9999][0] == f"{file}:9999"


def test_empty_parquet_file(tmp_path):
    file = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"prompt": pa.array([], pa.string())}), file)
    assert list(file_records(str(file), key="k")) == []


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing", b'{"prompt": "a"}\n' * 100])
def test_what_is_no_parquet_is_refused(tmp_path, content):
    file = tmp_path / "d.parquet"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"k.data_path=.*not a Parquet file"):
        list(file_records(str(file), key="k"))
