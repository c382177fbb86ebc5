"""MoRI-IO in its read mode: the decode engine reads the prefill engine's blocks over RDMA (AMD).

Each half finds its peer by the request id, which carries both pods' addresses, and by a transfer id of ours. The write
mode, in which both legs are sent at once, wants data-parallel ranks told that no pod tells yet: it is not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from routing.connectors.shape import Meeting, Name, Params, Plain, Side, Terms, checked, passed_on, place_of
from routing.facts import PodFacts

Size = Annotated[int, Meta(ge=1)]


class Told(Struct):
    """What the prefill engine answers, as far as its peer cannot do without."""

    remote_engine_id: Name
    remote_block_ids: list[list[int] | int]
    tp_size: Size = 1


@dataclass(frozen=True, slots=True)
class MoriIo(Plain):
    """`side_channel` is the handshake's host and port, `bootstrap` that of the notifications."""

    terms: ClassVar[Terms] = Terms(names=("MoRIIOConnector",), same_request_id=True)

    def may_prefill(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_consumer" and None not in (facts.side_channel, facts.bootstrap)

    def may_decode(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_producer" and None not in (facts.side_channel, facts.bootstrap)

    def ask(self, meeting: Meeting) -> Params | None:
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": _transfer(meeting)}

    def hand(self, meeting: Meeting, answered: object) -> Params | None:
        checked(answered, Told)
        host, handshake = place_of(meeting.prefill.facts.side_channel)
        _, notify = place_of(meeting.prefill.facts.bootstrap)
        return {
            **passed_on(answered),
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _transfer(meeting),
            "remote_host": host,
            "remote_handshake_port": handshake,
            "remote_notify_port": notify,
        }

    def request_id(self, meeting: Meeting) -> str:
        prefill, decode = _zmq(meeting.prefill), _zmq(meeting.decode)
        return f"___prefill_addr_{prefill}___decode_addr_{decode}_{meeting.key}"


def _transfer(meeting: Meeting) -> str:
    return f"tx-{meeting.key}"


def _zmq(side: Side) -> str:
    host, handshake = place_of(side.facts.side_channel)
    _, notify = place_of(side.facts.bootstrap)
    return f"host:{host},handshake:{handshake},notify:{notify}"
