import pytest

from grpo.data.tokens import check_vocabulary, tokenize
from grpo.errors import DataError
from tests.support.tokenizers import character_tokenizer


def ids_of(text, tokenizer):
    return [tokenizer.convert_tokens_to_ids(c) for c in text]


def tokens(texts, tokenizer, *, templated=False):
    return tokenize(texts, tokenizer, names=[f"d:{i}" for i in range(len(texts))], templated=templated)


def test_ids_of_a_plain_text():
    tokenizer = character_tokenizer()
    assert tokens(["ab", "c"], tokenizer) == [ids_of("ab", tokenizer), ids_of("c", tokenizer)]


def test_beginning_of_sequence_once():
    tokenizer = character_tokenizer(bos=True)
    assert tokens(["ab", "<s>ab"], tokenizer) == [[1, *ids_of("ab", tokenizer)]] * 2


def test_template_text_gets_no_second_beginning_of_sequence():
    tokenizer = character_tokenizer(bos=True)
    assert tokens(["<s>ab"], tokenizer, templated=True) == [[1, *ids_of("ab", tokenizer)]]


def test_template_decides_whether_there_is_a_beginning_of_sequence():
    tokenizer = character_tokenizer(bos=True)
    assert tokens(["ab"], tokenizer, templated=True) == [ids_of("ab", tokenizer)]


@pytest.mark.parametrize("bos", [True, False])
def test_end_of_sequence_never_follows_a_prompt(bos):
    tokenizer = character_tokenizer(bos=bos, eos_after=True)
    assert tokenizer("ab")["input_ids"][-1] == tokenizer.eos_token_id
    assert tokens(["ab"], tokenizer) == [[1] * bos + ids_of("ab", tokenizer)]


def test_padding_that_is_the_end_of_sequence_leaves_such_tokens_in_the_prompt():
    tokenizer = character_tokenizer()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 2
    assert tokens(["a</s>b</s>", "a"], tokenizer) == [
        [*ids_of("a", tokenizer), 2, *ids_of("b", tokenizer), 2],
        ids_of("a", tokenizer),
    ]


@pytest.mark.parametrize(("unknown", "message"), [(True, "has no token for"), (False, "leaves out")])
def test_character_without_token_names_record_and_character(unknown, message):
    with pytest.raises(DataError, match=rf"^d:1: the tokenizer {message} .*'é'.*'aéb'"):
        tokens(["ab", "aéb"], character_tokenizer(unknown=unknown))


def test_unknown_token_written_in_the_text_is_no_fault():
    tokenizer = character_tokenizer()
    assert tokens(["a<unk>"], tokenizer) == [[*ids_of("a", tokenizer), 0]]
    with pytest.raises(DataError, match="'é'"):
        tokens(["a<unk>é"], tokenizer)


def test_half_a_surrogate_pair_is_no_text():
    with pytest.raises(DataError, match=r"^d:0: .*surrogate pair at character 1"):
        tokens(["a\ud800"], character_tokenizer())


def test_text_without_tokens():
    with pytest.raises(DataError, match=r"^d:0: the prompt has no tokens"):
        tokens([""], character_tokenizer())


def test_ids_outside_the_models_vocabulary():
    tokenizer = character_tokenizer()
    rows = tokens(["a", "z"], tokenizer)
    highest = max(rows[1])
    check_vocabulary(rows, highest + 1, tokenizer, names=["d:0", "d:1"])
    with pytest.raises(
        DataError, match=rf"^d:1: token 'z' has the id {highest}, .* has {highest} \(ids 0 to {highest - 1}\)"
    ):
        check_vocabulary(rows, highest, tokenizer, names=["d:0", "d:1"])
