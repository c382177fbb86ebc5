"""The carrier of one request as the desk knows it, over a connection of ours or by somebody else's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.http.endpoints import Endpoint
from gateway.pipeline.attempt import Carrier, Leg
from gateway.relay.pinned_request import Errand
from routing.decision.placement import Placement


class Carries(Carrier, Protocol):
    @property
    def body(self) -> bytes:
        """What the pod is sent; nothing once it has begun to answer."""
        ...

    def ask_instead(self, body: bytes, model: str) -> None:
        """Send another body from now on: another model answers for `model`, and the client is told."""
        ...

    def ask_rung(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send a rung of a ladder its body from now on; the client is told which one has answered."""
        ...

    async def carry(self, placement: Placement | Errand, first_byte_by_s: float) -> Leg:
        """The same for what is placed nowhere: an errand to one engine."""
        ...


MakeCarrier = Callable[[Endpoint, bytes, bool], Carries]
"""For what is asked, with this body; the third says whether usage was asked for on the client's behalf."""
