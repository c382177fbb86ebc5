"""A YAML document read into typed values: every fault at once, each with its path.

Used for the policy and for the configuration, so that both reject in the same words. Independent of files and
environment: the text and the variables it may name are arguments. YAML is loaded within bounds: a short text cannot
become a large value, and duplicate keys are faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from math import isfinite
from typing import Any, TypeVar

import yaml

NODES_BY_ALIAS = 10_000
"""Nodes that aliases may produce in any text; a long text may have more."""

NODES_BY_ALIAS_PER_CHARACTER = 4
"""A line such as `legal: {<<: *usual}` repeats some forty nodes in twenty characters."""

CHARACTERS_PER_NODE = 64
"""A longer scalar counts as several nodes: what follows an alias looks at each character again."""

MAX_NUMBER_CHARS = 100
"""Characters. PyYAML takes quadratic time for `1:1:1...` and for more than 4,300 digits Python raises."""

MAX_DEPTH = 64
"""Levels. PyYAML's time grows with the square of the depth."""

WITHIN_ITSELF = "stands within what it names"
TOO_MANY = "aliases repeat too much of this document: write it out, or use fewer"


class BoundedLoader(yaml.SafeLoader):
    """Rejects what PyYAML takes in silence: keys that stand twice, and aliases that multiply or hold themselves."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._max_by_alias = NODES_BY_ALIAS + NODES_BY_ALIAS_PER_CHARACTER * len(stream)
        self._by_alias = 0
        self._nodes = 0
        """Composed up to now, repetitions by aliases included."""
        self._depth = 0
        self._nodes_of: dict[str, int] = {}
        """By anchor, once it is complete."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            self._repeat(event)
            return node
        if self._depth >= MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", event.start_mark)
        before = self._nodes
        self._nodes += 1 + len(event.value) // CHARACTERS_PER_NODE if isinstance(event, yaml.ScalarEvent) else 1
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._nodes_of[event.anchor] = self._nodes - before
        return node

    def _repeat(self, event: Any) -> None:
        if event.anchor not in self._nodes_of:
            raise yaml.composer.ComposerError(None, None, f"*{event.anchor} {WITHIN_ITSELF}", event.start_mark)
        repeated = self._nodes_of[event.anchor]
        self._nodes += repeated
        self._by_alias += repeated
        if self._by_alias > self._max_by_alias:
            raise yaml.composer.ComposerError(None, None, TOO_MANY, event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            key = key_node.value
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key `{key}`", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Construct an int or a float. Raises `ConstructorError` for one of more than `MAX_NUMBER_CHARS` characters."""
        if len(node.value) > MAX_NUMBER_CHARS:
            message = f"a number must have at most {MAX_NUMBER_CHARS} characters"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        found: int | float = (
            self.construct_yaml_int(node) if node.tag == "tag:yaml.org,2002:int" else self.construct_yaml_float(node)
        )
        return found

    yaml_constructors = {  # noqa: RUF012 - PyYAML looks here
        **yaml.SafeLoader.yaml_constructors,
        "tag:yaml.org,2002:int": construct_number,
        "tag:yaml.org,2002:float": construct_number,
    }


def load_yaml(text: str) -> Any:
    """Return what the text holds, as PyYAML's safe loader makes it.

    Raises `yaml.YAMLError`, `RecursionError`, and for a date or tag that makes no value whatever PyYAML raises.
    """
    return yaml.load(text, Loader=BoundedLoader)  # noqa: S506 - a subclass of SafeLoader


def load_all_yaml(text: str) -> list[Any]:
    """Return what each document of the text holds. Raises as `load_yaml`."""
    return list(yaml.load_all(text, Loader=BoundedLoader))


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the text's nodes with their places, None where it is empty. Raises as `load_yaml`."""
    return yaml.compose(text, Loader=BoundedLoader)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One thing that is wrong, and where: a path in the document, a flag, a variable."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def within(self, file: object) -> ConfigError:
        """The same, with the name of the document before its path."""
        return ConfigError(f"{file}: {self.path}" if self.path else str(file), self.message)


class InvalidDocument(Exception):  # noqa: N818 - it carries a verdict on a document
    """A document with faults; all of them."""

    def __init__(self, faults: Collection[ConfigError]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.errors = tuple(faults)


class InvalidValue(ValueError):  # noqa: N818 - said by a parser about one value
    """What is wrong with one value. The reader adds where it stands."""


Parse = Callable[[object], T]
"""Makes a value of what YAML read, or raises `InvalidValue`."""


Locate = Callable[[str, str], str]
"""Given a path in the document and its text, return the text to read: relative file names, located."""


def unchanged(_: str, text: str) -> str:
    """Locate nothing: for documents that name no files."""
    return text


def read_document(text: str, variables: Mapping[str, str], locate: Locate = unchanged) -> DocumentTable:
    """The document's outermost table. Raises `InvalidDocument` where the text is not a YAML mapping."""
    try:
        document = load_yaml(text)
    except yaml.MarkedYAMLError as error:
        raise InvalidDocument([ConfigError(_location(error), error.problem or "not YAML")]) from None
    except RecursionError:
        raise InvalidDocument([ConfigError("", DEEP)]) from None
    except Exception as error:  # noqa: BLE001 - a date, number or tag that makes no value raises whatever it raises
        raise InvalidDocument([ConfigError("", f"not YAML: {error}")]) from None
    faults: list[ConfigError] = []
    try:
        document = _substituted({} if document is None else document, "", variables, faults, locate)
    except RecursionError:
        raise InvalidDocument([ConfigError("", DEEP)]) from None
    return DocumentTable(document, "", faults)


DEEP = "nested too deeply, or within itself"

MAX_NODES = 100
"""Faults. Above this number faults are not compared with each other: with ten thousand it would take minutes."""


def _location(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")


def _substituted(
    value: object, path: str, variables: Mapping[str, str], faults: list[ConfigError], locate: Locate
) -> object:
    """`${NAME}` and `${NAME:-default}` replaced by the variable in every text; `$$` is a dollar."""
    if isinstance(value, dict):
        return {key: _substituted(held, join(path, key), variables, faults, locate) for key, held in value.items()}
    if isinstance(value, list):
        return [_substituted(held, f"{path}[{at}]", variables, faults, locate) for at, held in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name is None:
            return "$"
        found = variables.get(name) or default
        if found is None:
            faults.append(ConfigError(path, f"the variable {name} is not set"))
        return found or ""

    return locate(path, _VARIABLE.sub(variable, value))


def join(path: str, key: object) -> str:
    """The path of a key within the table at `path`."""
    return f"{path}.{key}" if path else str(key)


class DocumentTable:
    """One mapping of a document, read key by key. What is never asked for is an unknown key: `close` says so."""

    def __init__(self, value: object, path: str, faults: list[ConfigError]) -> None:
        self.path = path
        self.errors = faults
        self._read: set[str] = set()
        self._entries: dict[str, object] = {}
        self._is_mapping = isinstance(value, dict)
        if not isinstance(value, dict):
            faults.append(ConfigError(path, f"must be a mapping, not {_kind(value)}"))
            return
        for key, held in value.items():
            if isinstance(key, str):
                self._entries[key] = held
            else:
                faults.append(ConfigError(join(path, key), "a key must be text (quote it)"))

    def __contains__(self, key: str) -> bool:
        return self._entries.get(key) is not None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def get(self, key: str, parse: Parse[T], default: T) -> T:
        """The value at a key, or the default where it is absent, empty or wrong."""
        self._read.add(key)
        value = self._entries.get(key)
        return default if value is None else self._parsed(join(self.path, key), value, parse, default)

    def get_required(self, key: str, parse: Parse[T], default: T) -> T:
        """The same for a key that must be there."""
        if key not in self and self._is_mapping:
            self.error(key, "is missing")
        return self.get(key, parse, default)

    def each(self, key: str, parse: Parse[T]) -> tuple[T, ...] | None:
        """The values of a list, None where the key is absent. Wrong ones are left out."""
        self._read.add(key)
        values = self._entries.get(key)
        if values is None:
            return None
        if not isinstance(values, list):
            self.error(key, f"must be a list, not {_kind(values)}")
            return ()
        path = join(self.path, key)
        parsed = (self._parsed(f"{path}[{at}]", value, parse, None) for at, value in enumerate(values))
        return tuple(value for value in parsed if value is not None)

    def table(self, key: str) -> DocumentTable | None:
        """The mapping at a key, None where it is absent."""
        self._read.add(key)
        value = self._entries.get(key)
        return None if value is None else DocumentTable(value, join(self.path, key), self.errors)

    def tables(self, key: str) -> tuple[DocumentTable, ...]:
        """The mappings of a list."""
        path = join(self.path, key)
        values = self.each(key, lambda value: (value,)) or ()
        return tuple(DocumentTable(value, f"{path}[{at}]", self.errors) for at, (value,) in enumerate(values))

    def reject_unknown(self, key: str, message: str) -> None:
        """A key that is known but cannot be honoured: better no start than a setting that does nothing."""
        self._read.add(key)
        if key in self._entries:
            self.error(key, message)

    def reject_paths(self, fault_at: Callable[[str], str | None]) -> None:
        """Remove each key, at any depth, for whose path `fault_at` returns a text, and add that as its fault."""
        kept = self._without(self._entries, self.path, fault_at)
        self._entries = {key: value for key, value in kept.items() if isinstance(key, str)}

    def _without(
        self, entries: Mapping[Any, object], path: str, fault_at: Callable[[str], str | None]
    ) -> dict[Any, object]:
        def visited(value: object, at: str) -> object:
            if isinstance(value, list):
                return [visited(held, f"{at}[{index}]") for index, held in enumerate(value)]
            return self._without(value, at, fault_at) if isinstance(value, dict) else value

        kept: dict[Any, object] = {}
        for key, value in entries.items():
            at = join(path, key)
            fault = fault_at(at)
            if fault is not None:
                self.errors.append(ConfigError(at, fault))
            held = visited(value, at)
            if fault is None:
                kept[key] = held
        return kept

    def error(self, key: str, message: str) -> None:
        self.errors.append(ConfigError(join(self.path, key), message))

    def add_error(self, message: str) -> None:
        """Something is wrong with the table as a whole."""
        self.errors.append(ConfigError(self.path, message))

    def close(self) -> None:
        """Report the keys that were not read."""
        for key in self._entries:
            if key not in self._read:
                near = get_close_matches(key, self._read, 1) if len(self.errors) < MAX_NODES else []
                self.error(key, f"unknown key (did you mean `{near[0]}`?)" if near else "unknown key")

    def _parsed(self, path: str, value: object, parse: Parse[T], default: T) -> T:
        try:
            return parse(value)
        except InvalidValue as wrong:
            # Else this is what came of the first.
            if all(fault.path != path for fault in self.errors[-MAX_NODES:]):
                self.errors.append(ConfigError(path, str(wrong)))
            return default


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        raise InvalidValue(f"must be a text, not {_kind(value)} (quote it)")
    if not value:
        raise InvalidValue("must not be empty")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(f"must be true or false, not {_kind(value)}")
    return value


def number(value: object) -> float:
    """A finite number. `2e-7` too, which YAML 1.1 takes for a text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidValue(f"must be a number, not {_kind(value)}")
    try:
        found = float("" if isinstance(value, str) and "_" in value else value)
    except (ValueError, OverflowError):
        raise InvalidValue(f"must be a number, not {value!r}") from None
    if not isfinite(found):
        raise InvalidValue("must be finite")
    return found


def integer(value: object) -> int:
    """A whole number."""
    found = number(value)
    if found != int(found):
        raise InvalidValue(f"must be a whole number, not {value!r}")
    return int(found)


def positive(parse: Parse[T]) -> Parse[T]:
    """The same, above zero."""

    def parsed(value: object) -> T:
        found = parse(value)
        if not found > 0:  # type: ignore[operator]
            raise InvalidValue("must be above 0")
        return found

    return parsed


def not_negative(value: object) -> float:
    """A number, zero or above."""
    found = number(value)
    if found < 0:
        raise InvalidValue("must not be below 0")
    return found


def one_of(names: Collection[str]) -> Parse[str]:
    """One of a few words."""

    def parsed(value: object) -> str:
        found = text(value)
        if found not in names:
            near = get_close_matches(found, names, 1)
            hint = f" (did you mean `{near[0]}`?)" if near else ""
            raise InvalidValue(f"`{found}` is none of {', '.join(names)}{hint}")
        return found

    return parsed


def read_fields(table: DocumentTable, defaults: T, *, above_zero: bool = False) -> T:
    """Read a table into a dataclass; each key is of its default's type. Fields without a parser keep their default."""
    found: dict[str, object] = {}
    for field in fields(defaults):  # type: ignore[arg-type]
        default = getattr(defaults, field.name)
        if (parse := _PARSE_OF.get(type(default))) is None:
            continue
        if above_zero and parse is not flag and parse is not text:
            parse = positive(parse)
        found[field.name] = table.get(field.name, parse, default)
    table.close()
    return replace(defaults, **found)  # type: ignore[type-var]


_PARSE_OF: Mapping[type, Parse[Any]] = {bool: flag, int: integer, float: number, str: text}


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list"}
    kinds |= {dict: "a mapping", type(None): "nothing"}
    return kinds.get(type(value), type(value).__name__)
