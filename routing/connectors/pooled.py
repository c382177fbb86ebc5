"""Connectors by way of a store that prefill engines write and decode engines read, block by block.

No parameters pass between the legs: blocks are found by the hash of their tokens, so both pods must hash alike (the
same `PYTHONHASHSEED` and algorithm, which no pod reports). The decode leg is sent when the prefill leg has been
answered. What the store has evicted meanwhile is computed by the decode engine: a response comes whatever happens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from routing.connectors.shape import ConnectorCapabilities, KvTransferSession, Params, PointToPointConnector
from routing.facts import PodFacts


@dataclass(frozen=True, slots=True)
class PooledConnector(PointToPointConnector):
    """One store that all pods of a group share."""

    terms: ConnectorCapabilities

    def group(self, facts: PodFacts) -> Hashable | None:
        return (facts.tp, facts.pp)

    def ask(self, meeting: KvTransferSession) -> Params | None:
        return None

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        return None


MOONCAKE_STORE = PooledConnector(
    ConnectorCapabilities(names=("MooncakeStoreConnector",), is_pooled=True, supports_both_roles=True)
)


EXAMPLE = PooledConnector(ConnectorCapabilities(names=("ExampleConnector",), is_pooled=True, supports_both_roles=True))
