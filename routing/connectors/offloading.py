"""`OffloadingConnector` with its p2p tier: blocks in hosts' memory, read by peers.

A pair is sent at once under one request id of ours; the decode engine takes every key for a hit. `pull` has an engine
that prefills for itself read what a warm peer holds, block by block, and compute the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.connectors.shape import Flow, Meeting, Params, Plain, Terms, place_of
from routing.facts import PodFacts


@dataclass(frozen=True, slots=True)
class Offloading(Plain):
    """`side_channel` is the p2p tier's host and port."""

    terms: ClassVar[Terms] = Terms(names=("OffloadingConnector",), flow=Flow.CONCURRENT, both_roles=True)

    def may_prefill(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_consumer" and facts.side_channel is not None

    def ask(self, meeting: Meeting) -> Params | None:
        return {"remote_decoder": {"kv_request_id": meeting.key}}

    def hand(self, meeting: Meeting, answered: object) -> Params | None:
        return {"remote_prefiller": self._peer(meeting)}

    def pull(self, meeting: Meeting) -> Params:
        """What an engine is told that reads a peer's blocks: the meeting's prefill side, which computes nothing."""
        return {"remote_kv_source": self._peer(meeting)}

    @staticmethod
    def _peer(meeting: Meeting) -> dict[str, object]:
        host, port = place_of(meeting.prefill.facts.side_channel)
        return {"kv_request_id": meeting.key, "remote_host": host, "remote_port": port}
