"""NIXL: the decode engine reads the prefill engine's blocks (pull), or is sent them (push).

Sequential. The prefill answer carries where its blocks lie; the decode engine receives exactly that. A set in which one
field is missing kills the decode engine (`KeyError` in vLLM 0.32's scheduler), so all are looked at. Blocks are held
for `kv_lease_duration`, 30 s by default; a later read returns wrong data undetected: see `docs/pairs.md`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from routing.connectors.shape import (
    ConnectorCapabilities,
    KvTransferSession,
    Name,
    No,
    Params,
    PointToPointConnector,
    Port,
    Yes,
    passed_through,
    validated,
)
from routing.facts import PodFacts

LEASE_S = 30.0


class NixlPrefillResponse(Struct, kw_only=True):
    """What a NIXL producer answers, as far as its peer cannot do without."""

    do_remote_prefill: Yes
    do_remote_decode: No = False
    remote_engine_id: Name
    remote_request_id: Name
    remote_host: Name
    remote_port: Port
    remote_block_ids: list[list[int] | int]
    tp_size: int


@dataclass(frozen=True, slots=True)
class NixlPull(PointToPointConnector):
    """`NixlConnector` is the same by its older name."""

    terms: ClassVar[ConnectorCapabilities] = ConnectorCapabilities(
        names=("NixlConnector", "NixlPullConnector"), lease_s=LEASE_S, supports_both_roles=True
    )

    def group(self, facts: PodFacts) -> Hashable | None:
        return (facts.pp,)  # Engines of different tensor parallelism read each other's heads.

    def ask(self, meeting: KvTransferSession) -> Params | None:
        return {"do_remote_decode": True, "do_remote_prefill": False}

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        validated(answered, NixlPrefillResponse)
        return passed_through(answered)


@dataclass(frozen=True, slots=True)
class NixlPush(NixlPull):
    """The engines match their halves by request id: with two different ones the decode engine waits for ever."""

    terms: ClassVar[ConnectorCapabilities] = ConnectorCapabilities(
        names=("NixlPushConnector",), lease_s=LEASE_S, supports_both_roles=True
    )
