from dataclasses import replace

from grpo.data.prompt import Prompt, fingerprint_of

A = Prompt("d:0", "ab", (1, 2), "env", "7", {"x": 1})
B = Prompt("d:1", "c", (3,), "env", None, {})


def test_fingerprint_depends_on_ids_answers_and_order_alone():
    base = fingerprint_of([A, B])
    assert base == fingerprint_of([replace(A, prompt_id="other", text="zz", record={}), B])
    changed = [
        [B, A],
        [A],
        [replace(A, answer="8"), B],
        [A, replace(B, answer="None")],
        [replace(A, token_ids=(1, 3)), B],
    ]
    assert len({base, *map(fingerprint_of, changed)}) == 1 + len(changed)


def test_fingerprint_sees_where_one_prompt_ends():
    first = [replace(A, token_ids=(1, 2), answer=None), replace(B, token_ids=(3,))]
    second = [replace(A, token_ids=(1,), answer=None), replace(B, token_ids=(2, 3))]
    assert fingerprint_of(first) != fingerprint_of(second)
