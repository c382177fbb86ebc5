"""MooncakeConnector on the wire: both pods may be called at once; they are matched by a transfer's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.transfer.connector import PodAddress, Subject
from simulator.transfer.kv_transfer import NOTHING, Bootstrap, KvTransfer, RuleBroken
from simulator.transfer.wiring import KvRole

NEEDED = ("transfer_id", "remote_bootstrap_addr", "remote_engine_id")


class Mooncake:
    """The prefilling pod pushes what the decoding one has asked it for; roles are asserted."""

    def __init__(self, address: PodAddress) -> None:
        self._address = address

    def read(self, params: Mapping[str, Any], subject: Subject) -> KvTransfer:
        """What the parameters of a request mean. Raises `RuleBroken` where a role forbids them."""
        if params.get("do_remote_prefill"):
            if self._address.role is KvRole.PRODUCER:
                raise RuleBroken("a kv_producer received do_remote_prefill")
            if any(params.get(name) is None for name in NEEDED):
                return KvTransfer(remote_tokens=subject.prompt_tokens, is_poisoned=True)
            source = Bootstrap(
                str(params["remote_bootstrap_addr"]), str(params["remote_engine_id"]), str(params["transfer_id"])
            )
            reported = params.get("remote_prefill_cached_tokens")
            return KvTransfer(
                subject.prompt_tokens, source, reported_cached_tokens=None if reported is None else int(reported)
            )
        if not params.get("do_remote_decode"):
            return NOTHING
        if self._address.role is KvRole.CONSUMER:
            raise RuleBroken("a kv_consumer received do_remote_decode")
        if params.get("transfer_id") is None:
            raise RuleBroken("a request to be decoded elsewhere has no transfer_id")
        return KvTransfer(held_as=str(params["transfer_id"]))

    def returned(self, kv_transfer: KvTransfer, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """The gateway knows all there is to know."""
        return None
