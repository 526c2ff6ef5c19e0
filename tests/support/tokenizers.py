"""Small tokenizers made on the spot, each with one habit of the real ones."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "<s>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if think is defined %}{{ think }}{% endif %}{% endif %}"
)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ,=?+[].:\n"


def character_tokenizer(
    characters: str = CHARACTERS,
    *,
    unknown: bool = True,
    bos: bool = False,
    eos_after: bool = False,
    template: bool = False,
) -> PreTrainedTokenizerFast:
    """One token a character; padding is the end of sequence, as in many real tokenizers.

    Args:
        characters: what has a token.
        unknown: give every other character the unknown token; without, it is left out in silence.
        bos: put `<s>` before a text.
        eos_after: put `</s>` after a text.
        template: have a chat template of its own, which writes `<s>`.
    """
    specials = ["<unk>", "<s>", "</s>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *characters])}
    if unknown:
        core = Tokenizer(models.WordLevel(vocabulary, specials[0]))
        core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    else:
        core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.add_special_tokens(specials)
    if bos or eos_after:
        single = ("<s> " if bos else "") + "$A" + (" </s>" if eos_after else "")
        core.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"} | ({"unk_token": "<unk>"} if unknown else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **roles)
    if template:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
