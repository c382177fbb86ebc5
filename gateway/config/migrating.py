"""Rewrites the renamed keys of a configuration or policy in its text, so that comments and order stay.

A key is rewritten where only its name or its unit changed. What moved to another section is left, with its fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from gateway.config.renamed_keys import CHANGED_UNITS, RENAMED_KEYS
from tenancy.document import InvalidValue, compose_yaml
from tenancy.reading.renamed_keys import RENAMED_API_KEY_KEYS, RENAMED_TENANT_KEYS, RENAMED_TIER_KEYS

POLICY_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "tiers.*": RENAMED_TIER_KEYS,
    "tenants.*": RENAMED_TENANT_KEYS,
    "defaults": RENAMED_TENANT_KEYS,
    "auth.keys.*": RENAMED_API_KEY_KEYS,
}
"""Paths of a policy's sections, and the faults of their old keys. A star stands for one name."""

_FAULT = re.compile(r"renamed to `(?P<key>\w+)`(?:, a number of seconds: divide by (?P<divisor>\d+))?")


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in the text, by positions of characters."""

    start: int
    end: int
    text: str


def migrate(source: str) -> tuple[str, int]:
    """Return the text with the new names, and how many keys were renamed. Raises `InvalidValue` if it is no YAML."""
    try:
        root = compose_yaml(source)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidValue(f"is not YAML: {error}") from None
    # What several aliases repeat stands in the text once.
    by_start = {edit.start: edit for edit in _edits(root, ())}
    edits = sorted(by_start.values(), key=lambda edit: edit.start, reverse=True)
    text = source
    for edit in edits:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, len({edit.start for edit in edits if edit.text.isidentifier()})


def _edits(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[Edit]:
    """Yield the replacements below a node; positions of lists are no part of a path."""
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _edits(child, path)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        below = (*path, str(key.value))
        if (renamed := _renamed(below)) is not None:
            name, divisor = renamed
            yield Edit(key.start_mark.index, key.end_mark.index, name)
            yield from _converted(value, divisor)
        yield from _edits(value, below)


def _converted(value: yaml.Node, divisor: float) -> Iterator[Edit]:
    """Yield the replacements of numbers by a unit's divisor, of a section's numbers too."""
    if isinstance(value, yaml.MappingNode):
        for _, child in value.value:
            yield from _converted(child, divisor)
    elif isinstance(value, yaml.ScalarNode) and divisor != 1:
        try:
            number = float(value.value) / divisor
        except ValueError:
            return
        yield Edit(value.start_mark.index, value.end_mark.index, f"{number:.10g}")


def _renamed(path: tuple[str, ...]) -> tuple[str, float] | None:
    """Return the new name of a key and its unit's divisor, None if it keeps its name or its section."""
    *section, key = path
    for pattern, faults in POLICY_SECTIONS.items():
        steps = pattern.split(".")
        if len(section) == len(steps) and all(step in ("*", name) for step, name in zip(steps, section, strict=True)):
            found = _FAULT.match(faults.get(key, ""))
            if found is not None:
                return found["key"], float(found["divisor"] or 1)
    old = ".".join(path)
    new = RENAMED_KEYS.get(old)
    if new is None:
        return None
    parent, name = new.rpartition(".")[::2]
    kept = ".".join(section)
    if parent not in (kept, RENAMED_KEYS.get(kept) or kept):
        return None
    units = _FAULT.match(f"renamed to `{name}`{CHANGED_UNITS.get(old, '')}")
    return name, float(units["divisor"] or 1) if units else 1.0
