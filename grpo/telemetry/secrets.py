"""What must reach no file: credentials from the environment and from command lines."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

REMOVED = "[removed]"
_ENVIRONMENT_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_NAME_PARTS = frozenset(
    {"token", "key", "apikey", "secret", "secrets", "password", "passwd", "credential", "credentials"}
)
# Configuration keys that hold such a part and no credential.
_NOT_SECRET = frozenset({"input_key", "output_key", "stop_token_ids"})
# A shorter value (TOKENIZERS_PARALLELISM=false) is no credential, and removing it would riddle every text.
_SHORTEST = 6


def is_secret_name(name: str) -> bool:
    """Whether an option, a configuration key (its last dotted segment) or a variable names a credential."""
    last = name.lstrip("-").rsplit(".", 1)[-1].replace("-", "_")
    if last.lower() in _NOT_SECRET:
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower().split("_")
    return not _NAME_PARTS.isdisjoint(words)


class Redactor:
    """Replaces known secret values wherever they stand in a text that is about to be written."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[str] = []
        self.add(values)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Redactor":
        """Knows the value of every variable named like *TOKEN*, *KEY*, *SECRET*, *PASSWORD*, unless it is a path."""
        variables = os.environ if environ is None else environ
        return cls(
            value
            for name, value in variables.items()
            if _ENVIRONMENT_NAME.search(name) and not (value.startswith("/") and Path(value).exists())
        )

    def add(self, values: Iterable[str]) -> None:
        """Further values to remove from now on."""
        known = {*self._values, *(value for value in values if len(value) >= _SHORTEST)}
        # The longest first: one secret may hold another.
        self._values = sorted(known, key=len, reverse=True)

    def text(self, text: str) -> str:
        for value in self._values:
            if value in text:
                text = text.replace(value, REMOVED)
        return text

    def json(self, value: Any) -> Any:
        """The same JSON value without secrets: known values in any string, and whatever a secret name holds."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): REMOVED if is_secret_name(str(key)) and item not in (None, "") else self.json(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

    def config(self, text: str) -> str:
        """YAML without secrets. The text stays as it is, comments too, unless a key names a credential."""
        value = yaml.safe_load(text)
        cleaned = self.json(value)
        return text if cleaned == value else yaml.safe_dump(cleaned, sort_keys=False, allow_unicode=True)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command line without the values of options and overrides that name a credential."""
        cleaned: list[str] = []
        value_follows = False
        for argument in arguments:
            name, equals, _ = argument.partition("=")
            if value_follows:
                cleaned.append(REMOVED)
                value_follows = False
            elif equals and is_secret_name(name):
                cleaned.append(f"{name}={REMOVED}")
            else:
                value_follows = not equals and argument.startswith("-") and is_secret_name(argument)
                cleaned.append(self.text(argument))
        return cleaned


def secret_values(arguments: Sequence[str]) -> list[str]:
    """The values that `Redactor.command` removes by name, to be removed from other texts as well."""
    values: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if equals and is_secret_name(name):
            values.append(value)
        elif not equals and argument.startswith("-") and is_secret_name(argument):
            values.extend(arguments[position + 1 : position + 2])
    return values
