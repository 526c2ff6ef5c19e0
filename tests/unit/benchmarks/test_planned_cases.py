from pathlib import Path

from benchmarks.planned_cases import page, plan_of
from grpo.matrix.load import load_matrix

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")


def test_a_page_has_a_row_of_seconds_and_one_of_memory_a_case():
    case = MATRIX.case("8b-dtensor-random")
    plan = plan_of(case, "h200-141g", 150)
    assert plan.setting.workload.lengths.mean == 777 or abs(plan.setting.workload.lengths.mean - 777) < 8
    lines = list(page([(case.id, "h200-141g", plan)]))
    rows = [line for line in lines if line.startswith("| 8b-dtensor-random ")]
    assert len(rows) == 2
    assert rows[0].count("|") == lines[0].count("|")
    assert rows[1].endswith("| 139.8 | yes |")
