"""One setting given outside the file: by a flag, an environment variable, or a file that a variable names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenancy.document import ConfigError, InvalidValue

GivenValue = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """One setting as a flag and an environment variable."""

    name: str
    """The flag without its leading dashes."""
    parse: Callable[[object], Any]
    help: str
    metavar: str = "HOST:PORT"
    is_list: bool = False
    allows_file: bool = False
    """Whether a variable with the suffix _FILE may name the file that holds the value."""
    has_flag: bool = True
    """False for secrets: command lines are visible to all users of a machine."""
    prefix: str = "HEARTH_"
    former: str = ""
    """Its name in earlier versions: a variable of that name is a fault, since it would otherwise have no effect."""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return self.variable_of(self.name)

    def variable_of(self, name: str) -> str:
        """Return the environment variable of a setting with this name."""
        return f"{self.prefix}{name.replace('-', '_').upper()}"


def read_overrides(
    words: Iterable[SettingSpec],
    flags: Mapping[str, GivenValue | None],
    variables: Mapping[str, str],
    faults: list[ConfigError],
) -> dict[str, Any]:
    """Return the values of the settings that were given, by field; flags override variables. Appends faults."""
    given_values: dict[str, Any] = {}
    for word in words:
        if word.former and variables.get(old := word.variable_of(word.former)):
            faults.append(ConfigError(old, f"renamed to `{word.variable}`"))
        label, given = _given(word, flags, variables, faults)
        if given is None:
            continue
        try:
            given_values[word.field] = _parsed(word, given)
        except InvalidValue as wrong:
            faults.append(ConfigError(label, str(wrong)))
    return given_values


def _given(
    word: SettingSpec, flags: Mapping[str, GivenValue | None], variables: Mapping[str, str], faults: list[ConfigError]
) -> tuple[str, GivenValue | None]:
    """Return where a setting was given, and its raw value; None if it was not."""
    if (value := flags.get(word.field)) is not None:
        return f"--{word.name}", value
    if held := variables.get(word.variable):
        return word.variable, _several(word, held)
    label = f"{word.variable}_FILE"
    if word.allows_file and (path := variables.get(label)):
        try:
            return label, _several(word, Path(path).read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError):
            faults.append(ConfigError(label, f"cannot read `{path}`"))
    return word.variable, None


def _several(word: SettingSpec, held: str) -> GivenValue:
    return held.replace(",", " ").split() if word.is_list else held


def _parsed(word: SettingSpec, given: GivenValue) -> object:
    if not word.is_list:
        return word.parse(given)
    return tuple(dict.fromkeys(word.parse(value) for value in ([given] if isinstance(given, str) else given)))
