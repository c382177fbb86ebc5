"""The transport of a downstream request whose body the gateway holds: over its own connections, or by way of Envoy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.attempts.attempt import AttemptResult, AttemptTransport
from routing.decision.placement import Placement
from routing.pods import Engine
from routing.request import Request


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """A request pinned to the engine that has stored what it is about: neither placed nor charged."""

    request: Request
    engine: Engine
    handover: None = None

    def first_token(self, now_s: float) -> None:
        """Do nothing: no token is computed."""


class DownstreamTransport(AttemptTransport, Protocol):
    """An attempt transport whose body can be replaced between attempts."""

    @property
    def body(self) -> bytes:
        """The body that pods are sent; empty once a response has begun."""
        ...

    def downgrade(self, body: bytes, model: str) -> None:
        """Send another body from now on: a smaller model answers for `model`, which a response header says."""
        ...

    def use_cascade_model(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send the body for one model of a cascade from now on; a response header names the one that answers.

        `usage_added`: usage was requested on the client's behalf, and is withheld from it.
        """
        ...

    async def run_attempt(self, placement: Placement | PinnedRequest, first_byte_by_s: float) -> AttemptResult:
        """Send one attempt, also of a pinned request."""
        ...


MakeTransport = Callable[[str, bytes, bool], DownstreamTransport]
"""Makes the transport of a request: path, body, and whether usage was requested on the client's behalf."""
