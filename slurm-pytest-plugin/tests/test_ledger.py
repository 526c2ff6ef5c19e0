import os

import pytest
from slurm_pytest_plugin.ledger import Entry, Ledger, LedgerError, locked


def test_submissions_are_read_back_in_order(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.read() == {}
    entries = [Entry("a", 1, 0, "slurm"), Entry("a", 1, 0, "slurm", (), "7"), Entry("b", 2, 1, "slurm", ("n1",), "8")]
    for entry in entries:
        ledger.write(entry)
    assert ledger.read() == {"a": entries[:2], "b": entries[2:]}


@pytest.mark.parametrize("line", ["x\n", "[]\n", '{"schema_version": 1, "exclude": []}\n'])
def test_a_line_that_is_none_is_named(tmp_path, line):
    (tmp_path / "jobs.jsonl").write_text(line)
    with pytest.raises(LedgerError, match=r"jobs\.jsonl:1: not a line"):
        Ledger(tmp_path).read()


def test_a_line_of_a_newer_version(tmp_path):
    Ledger(tmp_path).write(Entry("a", 1, 0, "slurm"))
    path = tmp_path / "jobs.jsonl"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(LedgerError, match="schema_version 2; this version reads 1"):
        Ledger(tmp_path).read()


def test_one_pytest_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(LedgerError, match=f"another pytest .* .process {os.getpid()} on "):
        locked(tmp_path).__enter__()
    with locked(tmp_path):
        pass
