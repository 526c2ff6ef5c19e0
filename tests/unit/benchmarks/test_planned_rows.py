from benchmarks.planned_rows import BEGIN, END, PAGE, ROWS, table


def test_the_page_shows_what_is_planned_now():
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table().strip(), "write it again: python -m benchmarks.planned_rows"


def test_the_reported_rests_are_those_of_the_reports():
    # 112 - 28 - 5 - 58 - 18 = 3 and so on: published and rerun in turn.
    assert [row.total - sum(row.phases) for row in ROWS] == [3, 7, 4, 9, 3, 14, 8, 12]
