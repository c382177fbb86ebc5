"""Attempts: one try of a request at one pod, how it may end, and how long and how often a request is tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from routing.eligible import PairingFallback
from routing.rejection import Reason, RequestRejected
from routing.request import Request, Usage
from routing.retries import RetryTerms


class AttemptStatus(StrEnum):
    """Result of one attempt at one pod. Its consequences are in `_CONSEQUENCES`."""

    OK = "ok"
    """The complete response of the pod was sent to the client; a 4xx of the pod counts too."""
    UNREACHABLE = "unreachable"
    """No connection could be opened: the pod has received nothing of the request."""
    CONNECTION_RESET = "connection_reset"
    """The connection ended inside the response."""
    TIMEOUT = "timeout"
    """The pod or the stream sent no byte before its timeout."""
    ENGINE_HUNG = "engine_hung"
    """All streams of the engine are silent beyond its learned bound. Its HTTP server may still respond."""
    INVALID_RESPONSE = "invalid_response"
    """The response is not valid HTTP, or not in the format of its API."""
    UPSTREAM_BUSY = "upstream_busy"
    """The pod responded 429 or 503. This does not open its circuit breaker."""
    UPSTREAM_5XX = "upstream_5xx"
    """The pod responded with another 5xx."""
    ESCALATED = "escalated"
    """A cascade rejected the answer before the client received any of it; the next model is asked."""
    CONTINUATION_REJECTED = "continuation_rejected"
    """The pod rejected the continuation of a cut stream as a bad request."""
    REPLAY_MISMATCH = "replay_mismatch"
    """The pod was sent the same request again and generated another answer than the client had received."""
    PROVIDER_DENIED = "provider_denied"
    """Nothing was sent: the provider is not allowed for this request, or providers are stopped."""
    PROVIDER_LIMIT = "provider_limit"
    """Nothing was sent: the budget, share or parallel requests for providers are used up."""
    KV_TRANSFER_TIMEOUT = "kv_transfer_timeout"
    """The KV cache of the prefill pod did not arrive in time; either pod or the network may be the cause."""

    # An enum's own hash is a Python function.
    __hash__ = str.__hash__

    @property
    def reason(self) -> Reason | None:
        """Return why the client is rejected whose last attempt ended so; None where it has its answer."""
        return _CONSEQUENCES[self].reason

    @property
    def is_pod_failure(self) -> bool:
        """Whether it counts against the pod's health."""
        return _CONSEQUENCES[self].is_pod_failure

    @property
    def is_engine_gone(self) -> bool:
        """Whether the engine works for no request any more: to leave it adds no load."""
        return _CONSEQUENCES[self].is_engine_gone

    @property
    def has_lost_engine(self) -> bool:
        """Whether a request that was admitted has lost its engine: it may be served late rather than rejected."""
        return self.is_engine_gone or self is AttemptStatus.UNREACHABLE

    @property
    def is_counted(self) -> bool:
        """Whether it is one of the few failures that a request may have: a pod has received it and failed."""
        return _CONSEQUENCES[self].is_counted


class _Consequences(NamedTuple):
    reason: Reason | None = None
    is_pod_failure: bool = False
    is_engine_gone: bool = False
    is_counted: bool = True


_CONSEQUENCES = {
    AttemptStatus.OK: _Consequences(),
    AttemptStatus.UNREACHABLE: _Consequences(Reason.POD_UNREACHABLE, is_pod_failure=True, is_counted=False),
    AttemptStatus.CONNECTION_RESET: _Consequences(Reason.POD_LOST, is_pod_failure=True, is_engine_gone=True),
    AttemptStatus.TIMEOUT: _Consequences(Reason.POD_TIMEOUT, is_pod_failure=True),
    AttemptStatus.ENGINE_HUNG: _Consequences(Reason.POD_TIMEOUT, is_pod_failure=True, is_engine_gone=True),
    AttemptStatus.INVALID_RESPONSE: _Consequences(Reason.POD_INVALID_RESPONSE, is_pod_failure=True),
    AttemptStatus.UPSTREAM_BUSY: _Consequences(Reason.POD_BUSY),
    AttemptStatus.UPSTREAM_5XX: _Consequences(Reason.POD_ERROR, is_pod_failure=True),
    AttemptStatus.ESCALATED: _Consequences(is_counted=False),
    AttemptStatus.CONTINUATION_REJECTED: _Consequences(Reason.POD_LOST),
    AttemptStatus.REPLAY_MISMATCH: _Consequences(Reason.POD_LOST),
    AttemptStatus.PROVIDER_DENIED: _Consequences(Reason.PROVIDER_NOT_ALLOWED, is_counted=False),
    AttemptStatus.PROVIDER_LIMIT: _Consequences(Reason.PROVIDER_LIMIT, is_counted=False),
    AttemptStatus.KV_TRANSFER_TIMEOUT: _Consequences(Reason.POD_TIMEOUT),
}
"""The one table of what follows from an end: rejection, pod health, retries."""


class ResumeBlocker(StrEnum):
    """Why a stream that was cut is not resumed on another pod. A closed list: values of metrics and logs."""

    DISABLED = "disabled"
    """Disabled by the tenant's policy or the configuration."""
    MULTIPLE_CHOICES = "multiple_choices"
    """Several answers are streamed side by side (`n`, several prompts, beams)."""
    PROVIDER = "provider"
    """A provider outside the fleet was answering: there is no second pod that holds the same model."""
    STRUCTURED_OUTPUT = "structured_output"
    """Output is constrained by a grammar, which the next engine would start from its beginning."""
    TOOL_CALL = "tool_call"
    """A tool call was being generated."""
    REASONING = "reasoning"
    """Reasoning was generated: chat templates drop the reasoning of a message that is continued."""
    ECHO = "echo"
    """The answer repeats its prompt."""
    STORED_RESPONSE = "stored_response"
    """It builds on a response that only the lost pod has stored."""
    UNSUPPORTED_PROMPT = "unsupported_prompt"
    """Prompt or output cannot be expressed as the body of a second request."""
    STOP_STRING = "stop_string"
    """The output ends with what may be the beginning of a stop string, which the next engine would not recognise."""
    BUFFER_EXCEEDED = "buffer_exceeded"
    """Prompt or output is larger than what is kept for resuming."""
    UPSTREAM_REJECTED = "upstream_rejected"
    """The next pod rejected the continuation as a bad request."""
    REPLAY_MISMATCH = "replay_mismatch"
    """The next pod, asked for the same answer again, generated another one than the client had received."""
    MAX_CUTS_OR_TIMEOUT = "max_cuts_or_timeout"
    """It was cut too often, or no pod resumed it in time."""


class AttemptResult(Struct, frozen=True, gc=False):
    """The result of one attempt. `started`: the client has received some of this answer, so no other may begin one."""

    end: AttemptStatus
    status: int = 0
    started: bool = False
    usage: Usage | None = None
    """As reported by the engine; None where it reported none."""
    finish_reason: str | None = None
    response_id: str | None = None
    answer: bytes = b""
    """Canonical bytes of what was generated, where the transport keeps them."""
    counted: Usage | None = None
    """As counted here, where a limit or a judge ended a stream before its engine reported usage."""
    held_s: float = 0.0
    """How long a stream was held back before its client received the first of it."""
    was_paused: bool = False
    """The client has read so slowly that the pod was paused: when the answer ended says nothing of the engine."""
    detail: str = ""
    """What the pod or the network reported, for log and rejection. Never prompt or answer text."""
    fallback: PairingFallback | None = None
    """Why a pair failed as one, so that the request is to be served another way."""
    blames: str | None = None
    """URL of the pod that failed, where it is not the one that was to answer."""
    continuation: Request | None = None
    """The request for the remaining answer, where the stream was cut and another pod can resume it."""
    client_usage: Usage | None = None
    """Usage of the whole answer as its client receives it, where several pods have generated it."""
    is_behind: bool = False
    """A replay ended before it had repeated all that the client has."""
    repeated: int = 0
    """Tokens of the answer that were generated once more."""
    resume_blocker: ResumeBlocker | None = None
    """Why a stream that was cut cannot be resumed."""


class PrefillRequest(Struct, frozen=True, gc=False):
    """What the prefill pod of a pair is sent beside the client's own body."""

    request_id: str
    fields: bytes = b""
    """`kv_transfer_params` as JSON; empty where the engine is sent none."""
    ends_by_length: bool = False
    """Its one token must not be taken for the answer's end."""


class PrefillResult(Struct, frozen=True, gc=False):
    """The result of the prefill half of a pair."""

    end: AttemptStatus
    status: int = 0
    params: object = None
    """`kv_transfer_params` of the response as decoded JSON; not yet checked."""
    usage: Usage | None = None
    detail: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the engine has computed the prompt."""
        return self.end is AttemptStatus.OK and self.status < 400


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How long and how often a request is tried."""

    deadline_s: float = 600.0
    """From arrival to the first byte: after it no other pod is tried."""
    resume_s: float = 30.0
    """From a cut to the first byte of the remaining answer."""
    retries: RetryTerms = field(default_factory=RetryTerms)
    processes: int = 1
    """Processes that share the retry budget."""


def rejection_for(result: AttemptResult) -> RequestRejected:
    """Return the rejection of a client whose last attempt failed so."""
    reason = result.end.reason
    assert reason is not None, result  # noqa: S101 - an answer is no failure
    return RequestRejected(
        reason, result.detail or f"The pod failed during this request ({result.end}).", retry_after_s=1.0
    )
