"""Connectors by way of a store that prefill engines write and decode engines read, block by block.

No parameters pass between the legs: blocks are found by the hash of their tokens, so both pods must hash alike (the
same `PYTHONHASHSEED` and algorithm, which no pod reports). The decode leg is sent when the prefill leg has been
answered. What the store has evicted meanwhile is computed by the decode engine: a response comes whatever happens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from routing.connectors.shape import Meeting, Params, Plain, Terms
from routing.facts import PodFacts


@dataclass(frozen=True, slots=True)
class Pooled(Plain):
    """One store that all pods of a group share."""

    terms: Terms

    def group(self, facts: PodFacts) -> Hashable | None:
        return (facts.tp, facts.pp)

    def ask(self, meeting: Meeting) -> Params | None:
        return None

    def hand(self, meeting: Meeting, answered: object) -> Params | None:
        return None


MOONCAKE_STORE = Pooled(Terms(names=("MooncakeStoreConnector",), is_pooled=True, both_roles=True))


EXAMPLE = Pooled(Terms(names=("ExampleConnector",), is_pooled=True, both_roles=True))
