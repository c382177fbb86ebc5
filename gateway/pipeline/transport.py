"""The interface between the pipeline and a frontend: sends one attempt to a pod and its response to the client.

HTTP proxy, ext-proc and simulator each bring a transport; the pipeline knows no protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cascade.judging import AnswerJudge
from gateway.limits.accounts import RequestMeter
from gateway.pipeline.attempt import AttemptResult, PrefillRequest, PrefillResult
from routing.decision.placement import Placement
from routing.pods import Engine
from routing.rejection import RequestRejected
from routing.request import Request


class AttemptTransport(Protocol):
    """The transport of one downstream request."""

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        """Send the request to the placement's engine and relay its response; report the first token to the placement.

        Ends when the pod's response has ended, or with `TIMEOUT` when no byte of it has come by the loop time
        `first_byte_by_s`. Raises only `asyncio.CancelledError`, when the client has gone; the connection to the pod
        is then closed at once.
        """
        ...

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult | None:
        """Have the placement's prefill engine compute the prompt and keep its KV; the client receives nothing of it.

        Ends like `run_attempt`. None where the next hop does it.
        """
        ...

    def open_meter(self, meter: RequestMeter) -> None:
        """Count this request on the caller's accounts. Called before `run_attempt`, where there are any."""
        ...

    def reject(self, rejection: RequestRejected) -> None:
        """Send the client a rejection: as a whole response, or inside a stream that has begun."""
        ...


@dataclass(frozen=True, slots=True)
class PinnedRequest:
    """A request pinned to the engine that has stored what it is about: neither placed nor charged."""

    request: Request
    engine: Engine
    prefill: None = None
    handover: None = None

    def first_token(self, now_s: float) -> None:
        """Do nothing: no token is computed."""


class DownstreamTransport(AttemptTransport, Protocol):
    """A transport whose body can be replaced between attempts."""

    @property
    def body(self) -> bytes:
        """The body that pods are sent; empty once a response has begun."""
        ...

    def downgrade(self, body: bytes, model: str) -> None:
        """Send another body from now on: a make_downgraded model answers for `model`, which a response header says."""
        ...

    def use_cascade_model(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send the body for one model of a cascade from now on; a response header names the one that answers.

        `usage_added`: usage was requested on the client's behalf, and is withheld from it.
        """
        ...

    def set_judge(self, judge: AnswerJudge | None) -> None:
        """Hold the next answer back until `judge` has accepted it; None: relay it at once."""
        ...

    async def run_attempt(self, placement: Placement | PinnedRequest, first_byte_by_s: float) -> AttemptResult:
        """Send one attempt, also of a pinned request."""
        ...


MakeTransport = Callable[[str, bytes, bool], DownstreamTransport]
"""Makes the transport of a request: path, body, and whether usage was requested on the client's behalf."""
