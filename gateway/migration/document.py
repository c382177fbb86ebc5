"""The result of an import, and a document that knows which of its values were used.

A value that no importer takes is listed as having no counterpart, so that nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from tenancy.document import InvalidValue

Path = tuple[str | int, ...]

NO_COUNTERPART = "no counterpart"


@dataclass(frozen=True, slots=True)
class Note:
    """One value of the other gateway's file, and what became of it."""

    place: str
    words: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The configuration and policy as values of YAML, and what could not be kept."""

    config: dict[str, Any]
    policy: dict[str, Any] | None
    """None: requests are not authenticated."""
    changed: tuple[Note, ...]
    """Kept with another meaning."""
    unmapped: tuple[Note, ...]
    """Not kept."""

    @property
    def names_pods(self) -> bool:
        """Return whether a gateway would find pods with the configuration."""
        return "discovery" in self.config or any("pods" in entry for entry in self.config.get("model_list", ()))


@dataclass(slots=True)
class Source:
    """A parsed document. Every value below a taken path counts as used."""

    root: Any
    name: str = ""
    """Before each path in notes, such as `InferencePool/qwen`."""
    changed: list[Note] = field(default_factory=list)
    _dropped: dict[Path, str] = field(default_factory=dict)
    _taken: set[Path] = field(default_factory=set)

    def peek(self, *path: str | int) -> Any:
        """Return the value at a path, None if there is none, without taking it."""
        found = self.root
        for step in path:
            if isinstance(found, Mapping) or (isinstance(found, list) and isinstance(step, int) and step < len(found)):
                found = found.get(step) if isinstance(found, Mapping) else found[step]  # type: ignore[index]
            else:
                return None
        return found

    def take(self, *path: str | int) -> Any:
        """Return the value at a path, None if there is none, and count everything below as used."""
        found = self.peek(*path)
        if found is not None:
            self._taken.add(path)
        return found

    def take_each(self, path: Path, *words: str) -> None:
        """Take the named values of a mapping, and nothing else of it."""
        for word in words:
            self.take(*path, word)

    def change(self, words: str, *path: str | int) -> Any:
        """Take a value, with a note of what it means now."""
        found = self.take(*path)
        if found is not None:
            self.changed.append(Note(self._place(path), words))
        return found

    def drop(self, reason: str, *path: str | int) -> None:
        """Give the reason why a value has no counterpart."""
        if self.peek(*path) is not None:
            self._dropped[path] = reason

    def rows(self, *path: str | int) -> Iterator[int]:
        """Yield the indices of a list, none if it is none."""
        found = self.peek(*path)
        return iter(range(len(found) if isinstance(found, list) else 0))

    def unmapped(self) -> Iterator[Note]:
        """Yield every value that was not taken, in the order of the document."""
        for path in _leaves(self.root, ()):
            if not any(path[:length] in self._taken for length in range(len(path) + 1)):
                reasons = [self._dropped[path[:n]] for n in range(len(path) + 1) if path[:n] in self._dropped]
                yield Note(self._place(path), reasons[-1] if reasons else NO_COUNTERPART)

    def _place(self, path: Path) -> str:
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        if not self.name or not text:
            return self.name or text
        return f"{self.name}{'.' if self.name.endswith(']') else ': '}{text}"


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    """Yield the paths of scalars, and of empty mappings and lists. A null is as good as absent."""
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, Mapping):
        children = [(str(key), child) for key, child in value.items()]
    elif isinstance(value, list):
        children = list(enumerate(value))
    if children:
        for step, child in children:
            yield from _leaves(child, (*path, step))
    elif path and value is not None:
        yield path


def number(value: Any, place: str) -> float:
    """Return a number that YAML may have read as text, such as 1e-7. Raises `InvalidValue`."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = nan
    if not isfinite(found):
        raise InvalidValue(f"{place}: must be a number, not {value!r}")
    return found


def count(value: Any, place: str) -> int:
    """Return a number as an integer of at least 1. Raises `InvalidValue`."""
    return max(1, round(number(value, place)))


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, none where it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that hold something."""
    return {key: value for key, value in values.items() if value not in (None, {}, [], ())}
