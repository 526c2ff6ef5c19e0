from benchmarks.gpu.clock import alternately


def test_sides_take_turns_after_warming_up():
    calls = []
    sides = {"ours": lambda: calls.append("a"), "bare": lambda: calls.append("b")}
    found = alternately(sides, rounds=3, device="cpu", warm_up=1)
    assert "".join(calls) == "ab" * 4
    assert {name: len(values) for name, values in found.items()} == {"ours": 3, "bare": 3}


def test_past_the_deadline_one_round_is_taken():
    found = alternately({"ours": lambda: None}, rounds=5, device="cpu", deadline=0.0)
    assert len(found["ours"]) == 1
