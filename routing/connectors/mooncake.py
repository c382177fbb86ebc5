"""Mooncake: point to point by a transfer id that the gateway makes, and an engine id that the bootstrap server reports.

Both legs may be sent at once; the prefill answer carries no parameters. Engines assert their roles. A prefill that ends
by a stop token sends nothing. `remote_prefill_cached_tokens` makes the decode engine's usage report what the prefill
engine had cached, where that is known in time: else all that was transferred counts as cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from routing.connectors.shape import (
    ConnectorCapabilities,
    InvalidTransferParams,
    KvTransferSession,
    Params,
    PointToPointConnector,
    TransferMode,
    parse_host_port,
)
from routing.facts import PodFacts


@dataclass(frozen=True, slots=True)
class Mooncake(PointToPointConnector):
    """`MooncakeConnector`."""

    terms: ClassVar[ConnectorCapabilities] = ConnectorCapabilities(
        names=("MooncakeConnector",), transfer_mode=TransferMode.CONCURRENT, needs_engine_id=True, ends_by_length=True
    )

    def may_prefill(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_consumer" and facts.bootstrap is not None

    def ask(self, meeting: KvTransferSession) -> Params | None:
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": _transfer(meeting)}

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        side = meeting.prefill
        if not side.engine_id:
            raise InvalidTransferParams("the prefill pod's bootstrap server has not told its engine id")
        host, port = parse_host_port(side.facts.bootstrap)
        parameters: dict[str, object] = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _transfer(meeting),
            "remote_bootstrap_addr": f"http://{host}:{port}",
            "remote_engine_id": side.engine_id,
        }
        if meeting.cached_tokens is not None:
            parameters["remote_prefill_cached_tokens"] = meeting.cached_tokens
        return parameters


def _transfer(meeting: KvTransferSession) -> str:
    return f"xfer-{meeting.key}"
