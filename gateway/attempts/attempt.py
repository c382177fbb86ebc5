"""The seam between the spine and a shell: how one placement is carried to a pod and its answer to the client.

The HTTP proxy, ext-proc and the simulator each bring a carrier; the spine knows no protocol.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from cascade.judging import AnswerJudge
from gateway.attempts.resume_blocker import ResumeBlocker
from gateway.limits.accounts import RequestMeter
from routing.decision.placement import Placement
from routing.eligible import PairingFallback
from routing.rejection import RequestRejected
from routing.request import Request, Usage


class AttemptStatus(StrEnum):
    """How one attempt on one pod ended."""

    ANSWERED = "answered"
    """The pod's whole answer reached the client, or was the client's own fault (a 4xx) and is passed on."""
    UNREACHABLE = "unreachable"
    """No connection, so the pod has seen nothing of the request."""
    LOST = "lost"
    """The connection ended inside the answer."""
    TIMEOUT = "timeout"
    """Nothing came for longer than we wait."""
    HUNG = "hung"
    """The engine has fallen silent with all that it has, for longer than it ever does. Its server may still be well."""
    MALFORMED = "malformed"
    """Not HTTP as we can pass it on."""
    BUSY = "busy"
    """The pod said not now (429, 503). Busy is not broken."""
    BROKEN = "broken"
    """The pod said it failed (other 5xx)."""
    UNCONVINCING = "unconvincing"
    """It was judged not good enough before the client had any of it: a larger model is to answer."""
    UNWILLING = "unwilling"
    """It would not go on with an answer that another pod had begun, and says that it was asked wrongly."""
    DIFFERENT = "different"
    """Asked for the whole answer again, it said something else than another pod had told the client."""
    STALLED = "stalled"
    """KV that another pod had computed did not come in time. Which of the two, or the way between, nobody knows."""

    @property
    def is_pod_failure(self) -> bool:
        """Whether it counts against the pod's health."""
        return self not in NOT_POD_FAILURES


NOT_POD_FAILURES = frozenset(
    {
        *(AttemptStatus.ANSWERED, AttemptStatus.BUSY, AttemptStatus.UNCONVINCING),
        *(AttemptStatus.UNWILLING, AttemptStatus.DIFFERENT, AttemptStatus.STALLED),
    }
)


class AttemptResult(Struct, frozen=True, gc=False):
    """One attempt that has ended. `begun`: the client has been sent some of this answer, so no other may begin one."""

    end: AttemptStatus
    status: int = 0
    begun: bool = False
    usage: Usage | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    answer: bytes = b""
    """Canonical bytes of what was generated, where the shell keeps them."""
    counted: Usage | None = None
    """What was counted here, where a limit or a judge ended a stream before its engine could tell."""
    held_s: float = 0.0
    """How long a stream was held back before its client had the first of it."""
    detail: str = ""
    """What the pod or the network said, for the log and the refusal. Never prompt or answer text."""
    fallback: PairingFallback | None = None
    """Why a pair came to nothing, so that the request is to go another way."""
    blames: str | None = None
    """The pod that failed, where it is not the one that was to answer."""
    continuation: Request | None = None
    """The same request for what is left of its answer, where the stream was cut and another pod can go on with it."""
    client_usage: Usage | None = None
    """Usage of the whole answer as its client is told it, where several pods have made it."""
    is_behind: bool = False
    """It ended before it had said again what the client knew."""
    repeated: int = 0
    """So many tokens of the answer it made once more."""
    resume_blocker: ResumeBlocker | None = None
    """Why a stream that was cut cannot be gone on with."""


class PrefillRequest(Struct, frozen=True, gc=False):
    """What a pair's prefill leg is asked with, beside the client's own body."""

    request_id: str
    fields: bytes = b""
    """`kv_transfer_params` as JSON; none where the engine is told nothing."""
    ends_by_length: bool = False
    """Its one token must not be taken for the answer's end."""


class PrefillResult(Struct, frozen=True, gc=False):
    """A prefill leg that has ended."""

    end: AttemptStatus
    status: int = 0
    params: object = None
    """The answer's `kv_transfer_params`, as JSON has them; not yet looked at."""
    usage: Usage | None = None
    detail: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the engine has computed the prompt."""
        return self.end is AttemptStatus.ANSWERED and self.status < 400


class AttemptTransport(Protocol):
    """One client request in one shell."""

    async def run_attempt(self, placement: Placement, first_byte_by_s: float) -> AttemptResult:
        """Send the request to the placement's engine and relay its answer; tell the placement its first token.

        Ends when the pod's answer has ended, or with `TIMEOUT` when nothing of it has come by the loop time
        `first_byte_by_s`. Raises only `asyncio.CancelledError`, when the client has gone; the pod is
        then told at once by closing its connection.
        """
        ...

    async def prefill(self, placement: Placement, order: PrefillRequest, by_s: float) -> PrefillResult | None:
        """Have the placement's prefill engine compute the prompt and keep its KV; nothing of it is the client's.

        Ends like `carry`. None where whoever takes the request on from here sees to it.
        """
        ...

    def open_meter(self, tab: RequestMeter) -> None:
        """The caller's accounts keep count of this request. Called before `carry`, where there are any."""
        ...

    def set_judge(self, judge: AnswerJudge | None) -> None:
        """What is carried next is shown to `judge` before the client; None: to nobody. Called before `carry`."""
        ...

    def reject(self, refusal: RequestRejected) -> None:
        """Tell the client no: as a whole answer, or inside a stream that has begun."""
        ...
