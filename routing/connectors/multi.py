"""`MultiConnector`: several in one engine, as the pod reports it:
`MultiConnector(NixlConnector,MooncakeStoreConnector)`.

The engine merges the parameters of its children, and fails if two of them set the same one. So at most one of them may
have parameters; the others are stores.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from routing.connectors.shape import Connector, ConnectorCapabilities, KvTransferSession, Params
from routing.facts import PodFacts

NAME = "MultiConnector"


@dataclass(frozen=True, slots=True)
class MultiConnector:
    """Speaks for the child that pairs."""

    child: Connector
    children: tuple[str, ...]
    """The names of all children, which must be alike on both sides."""

    @property
    def terms(self) -> ConnectorCapabilities:
        return self.child.terms

    def group(self, facts: PodFacts) -> Hashable | None:
        group = self.child.group(facts)
        return None if group is None else (group, self.children)

    def may_prefill(self, facts: PodFacts) -> bool:
        return self.child.may_prefill(facts)

    def may_decode(self, facts: PodFacts) -> bool:
        return self.child.may_decode(facts)

    def ask(self, meeting: KvTransferSession) -> Params | None:
        return self.child.ask(meeting)

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        return self.child.hand(meeting, answered)


def children_of(name: str) -> tuple[str, ...]:
    """Return the names in the brackets after `MultiConnector`; empty for another connector or if they are not given."""
    head, bracket, inside = name.partition("(")
    if head.strip() != NAME or not bracket or not inside.endswith(")"):
        return ()
    return tuple(child.strip() for child in inside[:-1].split(",") if child.strip())
