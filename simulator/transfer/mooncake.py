"""MooncakeConnector on the wire: both pods may be asked at once; they meet by a transfer's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.transfer.connector import Place, Subject
from simulator.transfer.errand import NOTHING, Bootstrap, Errand, RuleBroken
from simulator.transfer.wiring import KvRole

NEEDED = ("transfer_id", "remote_bootstrap_addr", "remote_engine_id")


class Mooncake:
    """The prefilling pod pushes what the decoding one has asked it for; roles are asserted."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, params: Mapping[str, Any], subject: Subject) -> Errand:
        """What the parameters of a request mean. Raises `RuleBroken` where a role forbids them."""
        if params.get("do_remote_prefill"):
            if self._place.role is KvRole.PRODUCER:
                raise RuleBroken("a kv_producer received do_remote_prefill")
            if any(params.get(name) is None for name in NEEDED):
                return Errand(remote_tokens=subject.prompt_tokens, is_poisoned=True)
            source = Bootstrap(
                str(params["remote_bootstrap_addr"]), str(params["remote_engine_id"]), str(params["transfer_id"])
            )
            told = params.get("remote_prefill_cached_tokens")
            return Errand(subject.prompt_tokens, source, told_cached_tokens=None if told is None else int(told))
        if not params.get("do_remote_decode"):
            return NOTHING
        if self._place.role is KvRole.CONSUMER:
            raise RuleBroken("a kv_consumer received do_remote_decode")
        if params.get("transfer_id") is None:
            raise RuleBroken("a request to be decoded elsewhere has no transfer_id")
        return Errand(held_as=str(params["transfer_id"]))

    def returned(self, errand: Errand, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """The gateway knows all there is to know."""
        return None
