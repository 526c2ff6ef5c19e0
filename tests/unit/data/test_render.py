import pytest

from grpo.config.schema import Tokenizer
from grpo.config.schema.data import DataDefault
from grpo.data.render import Renderer
from grpo.errors import DataError
from tests.support.tokenizers import CHAT_TEMPLATE, character_tokenizer

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def render(prompt, *, default=None, settings=None, template=True):
    renderer = Renderer.build(default or DataDefault(), settings or Tokenizer(), character_tokenizer(template=template))
    return renderer.render([prompt], ["d:0"])[0]


def test_tokenizers_own_template():
    assert render("a") == "<s>[user]a[assistant]"
    assert render(CHAT) == "<s>[user]a[assistant]b[user]c[assistant]"


def test_template_arguments_reach_the_template():
    assert render("a", settings=Tokenizer(chat_template_kwargs={"think": "no"})) == "<s>[user]a[assistant]no"


def test_no_template():
    assert render("a", settings=Tokenizer(chat_template="none")) == "a"
    assert render("a", template=False) == "a"


def test_template_of_a_file(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}!")
    assert render("a", settings=Tokenizer(chat_template=str(file)), template=False) == "a!"


def test_prompt_and_system_prompt_files(tmp_path):
    (tmp_path / "p").write_text("say {} in {{}}")
    (tmp_path / "s").write_text("be kind\n")
    default = DataDefault(prompt_file=str(tmp_path / "p"), system_prompt_file=str(tmp_path / "s"))
    assert render("a{b}", default=default) == "<s>[system]be kind[user]say a{b} in {}[assistant]"
    assert render(CHAT, default=default) == "<s>[system]be kind[user]a[assistant]b[user]say c in {}[assistant]"
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "a"}]
    assert render(own, default=default) == "<s>[system]mine[user]say a in {}[assistant]"


def test_rendering_leaves_the_record_as_it_was(tmp_path):
    (tmp_path / "p").write_text("say {}")
    chat = [{"role": "user", "content": "a"}]
    render(chat, default=DataDefault(prompt_file=str(tmp_path / "p")))
    assert chat == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("key", ["prompt_file", "system_prompt_file"])
def test_missing_file_names_the_key(tmp_path, key):
    with pytest.raises(DataError, match=f"^data.default.{key}=.*no such file"):
        render("a", default=DataDefault(**{key: str(tmp_path / "absent")}))


def test_missing_template_file_names_the_key(tmp_path):
    with pytest.raises(DataError, match=r"^policy.tokenizer.chat_template=.*no such file"):
        render("a", settings=Tokenizer(chat_template=str(tmp_path / "absent")))


@pytest.mark.parametrize("settings", [Tokenizer(chat_template="none"), Tokenizer()])
def test_chat_and_system_prompt_need_a_template(tmp_path, settings):
    (tmp_path / "s").write_text("be kind")
    with pytest.raises(DataError, match=r"^d:0: the prompt is a chat"):
        render(CHAT, settings=settings, template=False)
    with pytest.raises(DataError, match=r"system_prompt_file=.*needs a chat template"):
        render("a", default=DataDefault(system_prompt_file=str(tmp_path / "s")), settings=settings, template=False)


def test_chat_that_the_template_refuses_is_named(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}" + CHAT_TEMPLATE)
    renderer = Renderer.build(DataDefault(), Tokenizer(chat_template=str(file)), character_tokenizer())
    with pytest.raises(DataError, match=r"^d:1: .*roles user, assistant, user\): one only"):
        renderer.render(["a", CHAT], ["d:0", "d:1"])


def test_broken_template_is_an_error_of_the_recipe(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{% if %}")
    with pytest.raises(DataError, match=r"policy.tokenizer.chat_template"):
        render("a", settings=Tokenizer(chat_template=str(file)))
