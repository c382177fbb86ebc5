"""Which line of the file each fact about a tenant comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from tenancy.document import join
from tenancy.loading import compose_yaml
from tenancy.policy import Policy
from tenancy.telling.facts import facts


@dataclass(frozen=True, slots=True)
class Explained:
    """One fact, and whence: a path and a line, or nothing where the file says nothing."""

    word: str
    value: str
    path: str = ""
    line: int = 0

    @property
    def source(self) -> str:
        return f"{self.path}, line {self.line}" if self.line else "unless said otherwise"


def explain(source: str, policy: Policy, name: str) -> Iterator[Explained]:
    """What one tenant of the policy in this text gets."""
    lines, tenant = lines_of(source), policy.tenants[name]
    for fact in facts(tenant):
        path = next((path for path in _paths(fact.word, name, tenant.tier.name, lines) if path in lines), "")
        yield Explained(fact.word, fact.value, path, lines.get(path, 0))


def _paths(word: str, tenant: str, tier: str, lines: Mapping[str, int]) -> Iterator[str]:
    """Where a word may be said, the first that is counts."""
    first, dot, rest = word.partition(".")
    if first == "tier" and dot:
        yield f"tiers.{tier}.{rest}"
        return
    yield f"tenants.{tenant}.{word}"
    # A tenant's own table of these stands in place of the usual one, whole.
    if first not in ("per_user", "groups") or f"tenants.{tenant}.{first}" not in lines:
        yield f"defaults.{word}"
    if word == "on_overload":
        yield f"tiers.{tier}.on_overload"


def lines_of(source: str) -> dict[str, int]:
    """Path to line of every key in a text that is known to be YAML."""
    lines: dict[str, int] = {}
    root = compose_yaml(source)
    if root is not None:
        _note(root, "", lines)
    return lines


def _note(node: yaml.Node, path: str, lines: dict[str, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        # What is merged in counts only where nothing else is said.
        for key, value in sorted(node.value, key=lambda pair: pair[0].value == "<<"):
            if key.value == "<<":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _note(merged, path, lines)
            else:
                at = join(path, key.value)
                lines.setdefault(at, key.start_mark.line + 1)
                _note(value, at, lines)
