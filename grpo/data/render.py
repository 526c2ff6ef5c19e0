"""From a prompt or chat to the text that the model reads: prompt file, system prompt, chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from grpo.config.schema import Tokenizer
from grpo.config.schema.data import DataDefault
from grpo.data.sources.record import Message
from grpo.data.template import parse_wrapper
from grpo.errors import DataError
from grpo.recipes import shipped_prompt

_TEMPLATE_KEY = "policy.tokenizer.chat_template"


@dataclass(frozen=True)
class Renderer:
    """What turns prompts into texts; the same for every record of a dataset."""

    tokenizer: PreTrainedTokenizerBase
    template: str | None  # Jinja; None: the prompt is the text
    template_kwargs: Mapping[str, Any]
    wrapper: tuple[str, str]  # before and after the prompt, or the last user message
    system_prompt: str | None

    @classmethod
    def build(cls, default: DataDefault, settings: Tokenizer, tokenizer: PreTrainedTokenizerBase) -> "Renderer":
        """Read the files that the recipe names. Raises DataError for one that is missing or has no place to fill."""
        template = _chat_template(settings, tokenizer)
        wrapper = ("", "")
        if default.prompt_file is not None:
            text = _read(_prompt_path(default.prompt_file), "data.default.prompt_file")
            wrapper = parse_wrapper(text, key=f"data.default.prompt_file={default.prompt_file}")
        system_prompt = None
        if default.system_prompt_file is not None:
            if template is None:
                raise DataError(
                    f"data.default.system_prompt_file={default.system_prompt_file}: a system prompt needs a "
                    f"chat template, and {_why_none(settings)}; name a Jinja file in {_TEMPLATE_KEY}, or write the "
                    "text into data.default.prompt_file"
                )
            system_prompt = _read(default.system_prompt_file, "data.default.system_prompt_file").strip()
        return cls(tokenizer, template, settings.chat_template_kwargs, wrapper, system_prompt)

    @property
    def templated(self) -> bool:
        """Whether a chat template wrote the texts, special tokens included."""
        return self.template is not None

    def render(self, prompts: Sequence[str | list[Message]], names: Sequence[str]) -> list[str]:
        """The texts of `prompts`. Raises DataError, naming the record, where there is no template or it refuses."""
        if self.template is None:
            return [self._plain(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
        chats = [self._chat(prompt) for prompt in prompts]
        try:
            return self._apply(chats)
        except (TemplateError, TypeError, KeyError) as error:
            raise self._refusal(chats, names, error) from error

    def _plain(self, prompt: str | list[Message], name: str) -> str:
        if not isinstance(prompt, str):
            raise DataError(
                f"{name}: the prompt is a chat, and there is no chat template: name a Jinja file in "
                f"{_TEMPLATE_KEY}, or give texts"
            )
        return self.wrapper[0] + prompt + self.wrapper[1]

    def _chat(self, prompt: str | list[Message]) -> list[Message]:
        chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.wrapper != ("", ""):
            for message in reversed(chat):
                if message["role"] == "user":
                    message["content"] = self.wrapper[0] + message["content"] + self.wrapper[1]
                    break
        if self.system_prompt is not None and chat[0]["role"] != "system":
            chat.insert(0, {"role": "system", "content": self.system_prompt})
        return chat

    def _apply(self, chats: list[list[Message]]) -> list[str]:
        rendered = self.tokenizer.apply_chat_template(
            chats, chat_template=self.template, tokenize=False, add_generation_prompt=True, **self.template_kwargs
        )
        assert isinstance(rendered, list)
        return [str(text) for text in rendered]

    def _refusal(self, chats: list[list[Message]], names: Sequence[str], error: Exception) -> DataError:
        for chat, name in zip(chats, names, strict=True):
            try:
                self._apply([chat])
            except (TemplateError, TypeError, KeyError) as own:
                roles = ", ".join(message["role"] for message in chat)
                return DataError(f"{name}: the chat template ({_TEMPLATE_KEY}) refuses it (roles {roles}): {own}")
        return DataError(f"{_TEMPLATE_KEY}: the template failed: {error}")


def _chat_template(settings: Tokenizer, tokenizer: PreTrainedTokenizerBase) -> str | None:
    if settings.chat_template == "none":
        return None
    if settings.chat_template == "default":
        return tokenizer.get_chat_template() if tokenizer.chat_template else None
    return _read(settings.chat_template, _TEMPLATE_KEY)


def _why_none(settings: Tokenizer) -> str:
    return f"{_TEMPLATE_KEY} is 'none'" if settings.chat_template == "none" else "the tokenizer has none of its own"


def _prompt_path(name: str) -> str:
    """A file that exists is the one that is read; else a prompt that ships with the package."""
    shipped = None if Path(name).expanduser().exists() else shipped_prompt(name)
    return name if shipped is None else str(shipped)


def _read(name: str, key: str) -> str:
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{key}={name}: there is no such file (looked for at {path.absolute()})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}={name}: the file cannot be read: {error}") from error
