"""What became of one request: the one value from which its log line, metrics, receipt and usage record are made."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from cascade.record import CascadeResult
from gateway.attempts.resume_blocker import ResumeBlocker
from routing.decision.receipt import AttemptReceipt
from routing.rejection import Reason
from routing.request import Request, Usage
from tenancy.objective import DEFAULT_TIER

CLIENT_GONE_STATUS = 499
"""No standard status exists for a client that left; nginx's number is the one that operators know."""


class Frontend(Struct, frozen=True, gc=False):
    """The front end by which a request came, and how much of it that shows us where there are several ways."""

    name: str
    mode: str | None = None


HTTP = Frontend("http")


class Outcome(Struct, frozen=True, gc=False):
    """A request that has ended. Times are of the loop's clock but for `at_s`, which is Unix time.

    A struct, like all that is made for every request: a frozen dataclass of so many fields takes ten times as long.
    """

    request: Request
    at_s: float
    tenant: str | None
    trace: str | None
    """The W3C `traceparent` that came with the request."""
    status: int
    reason: Reason | None
    """Why it was refused, None where it was not."""
    detail: str
    finish_reason: str | None
    usage: Usage | None
    attempts: tuple[AttemptReceipt, ...]
    ttft_s: float | None
    """From the request's arrival to its first token, waiting and retries included."""
    duration_s: float
    decode_s: float | None
    """From its first token to its end."""
    tier: str = DEFAULT_TIER.name
    key_id: str | None = None
    user: str | None = None
    queued_s: float = 0.0
    """How long it waited here for an engine that might take it."""
    promise_met: bool | None = None
    """Whether it got what its tier promises; None where nothing was promised, or it was not for us to keep."""
    group: str | None = None
    shared: str | None = None
    """The id of the request whose answer it was given as well."""
    shell: Frontend = HTTP
    cascade: CascadeResult | None = None
    """Its way up a ladder, where it was asked of one."""
    resumed: int = 0
    """How often another pod has gone on with what a lost one had begun."""
    unresumed: ResumeBlocker | None = None
    """Why nobody went on with it."""
    wasted_tokens: int = 0
    """Of prompt and answer, that were computed again for that."""
    predicted_ttft_s: float | None = None
    """Of a request that was rejected because its first token would have been late: the prediction, from arrival."""
    promised_ttft_s: float | None = None
    """What its service level allowed."""


OutcomeListener = Callable[[Outcome], None]
"""Something that takes note of every outcome. Must not raise and must not wait."""
