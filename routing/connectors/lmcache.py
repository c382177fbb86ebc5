"""LMCache, in its two ways: a pool that all share, and prefill sent straight to the decode pod (PD).

PD is sent its destination: the decode pod's receiver, so it is chosen before prefill starts. Which of the two a pod is
in is seen by its role: the pool's pods are `kv_both`, PD's are producers and consumers. A consumer's `side_channel` is
its receiver's init port, its `bootstrap` the alloc port.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from routing.connectors.pooled import PooledConnector
from routing.connectors.shape import (
    ConnectorCapabilities,
    KvTransferSession,
    Params,
    PointToPointConnector,
    parse_host_port,
    validated,
)
from routing.facts import PodFacts

NAMES = ("LMCacheConnectorV1",)

SPLIT_ROLES = frozenset({"kv_producer", "kv_consumer"})


class LmCachePrefillResponse(Struct):
    """What a PD producer answers."""

    first_tok: int


@dataclass(frozen=True, slots=True)
class LmCachePool(PooledConnector):
    """One store; engines do both."""

    def group(self, facts: PodFacts) -> Hashable | None:
        return None if facts.kv_role in SPLIT_ROLES else (facts.tp, facts.pp)


LMCACHE_POOL = LmCachePool(
    ConnectorCapabilities(names=(*NAMES, "LMCacheMPConnector"), is_pooled=True, supports_both_roles=True)
)


@dataclass(frozen=True, slots=True)
class LmCachePd(PointToPointConnector):
    """Producers push to consumers."""

    terms: ClassVar[ConnectorCapabilities] = ConnectorCapabilities(names=NAMES)

    def group(self, facts: PodFacts) -> Hashable | None:
        return (facts.tp, facts.pp) if facts.kv_role in SPLIT_ROLES else None

    def may_decode(self, facts: PodFacts) -> bool:
        return facts.kv_role == "kv_consumer" and facts.side_channel is not None and facts.bootstrap is not None

    def ask(self, meeting: KvTransferSession) -> Params | None:
        host, init_port = parse_host_port(meeting.decode.facts.side_channel)
        _, alloc_port = parse_host_port(meeting.decode.facts.bootstrap)
        spec = {
            "req_id": meeting.request_id,
            "receiver_host": host,
            "receiver_init_port": init_port,
            "receiver_alloc_port": alloc_port,
        }
        return {"ret_first_tok": True, "disagg_spec": spec}

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        validated(answered, LmCachePrefillResponse)
        return None
