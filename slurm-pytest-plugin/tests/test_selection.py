import pytest
from slurm_pytest_plugin import Case, CaseError
from slurm_pytest_plugin.selection import by_id, chosen, unknown

CASES = by_id([Case("70b-megatron", ""), Case("70b-megatron-fp8", ""), Case("8b-dtensor", "")])


def test_a_name_chooses_exactly_its_case():
    assert [case.id for case in chosen(CASES, ["70b-megatron"])] == ["70b-megatron"]
    assert [case.id for case in chosen(CASES, [])] == list(CASES)


def test_an_unknown_name_is_answered_with_the_nearest():
    assert unknown(["8b-dtensor"], CASES) is None
    assert unknown(["70b-megatrom"], CASES) == (
        "--case 70b-megatrom: there is no such case; the nearest are 70b-megatron, 70b-megatron-fp8"
    )
    assert "there are 70b-megatron, " in unknown(["zzz"], CASES)
    assert unknown(["a"], []) == "--case a: there is no such case"


def test_two_cases_of_one_name():
    with pytest.raises(CaseError, match="two cases have the id a"):
        by_id([Case("a", ""), Case("a", "")])
