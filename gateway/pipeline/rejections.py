"""The one table from reason to status, code and headers, and the error bodies of the OpenAI and Anthropic APIs.

Used by every frontend. Names follow the two APIs, so that their clients raise and retry correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

import msgspec

from gateway.limits.rate_limit_response import QuotaExceeded
from routing.rejection import ErrorOwner, Reason, RequestRejected


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """The response to a reason: HTTP status, OpenAI `type` and `code`, Anthropic `type`, and the owner of the fault."""

    status: int
    type: str
    code: str
    anthropic: str
    fault: ErrorOwner
    hopeless: bool = False
    """Whether an unchanged retry fails again: `x-should-retry: false`."""


def _client(status: int, code: str, kind: str = "invalid_request_error", anthropic: str | None = None) -> ResponseSpec:
    return ResponseSpec(status, kind, code, anthropic or kind, ErrorOwner.CLIENT, hopeless=True)


def _pod(status: int, code: str, kind: str = "server_error") -> ResponseSpec:
    return ResponseSpec(status, kind, code, "api_error", ErrorOwner.POD)


def _spent(kind: str, code: str = "rate_limit_exceeded", *, hopeless: bool = False) -> ResponseSpec:
    """Return the response for a used-up limit; its type says to OpenAI's clients whether of requests or tokens."""
    return ResponseSpec(429, kind, code, "rate_limit_error", ErrorOwner.CLIENT, hopeless)


def _shed() -> ResponseSpec:
    """Return the response under overload: 429, as the endpoint picker protocol requires; 529 for Anthropic's API."""
    return ResponseSpec(429, "rate_limit_error", "slow_down", "overloaded_error", ErrorOwner.GATEWAY)


def _saturated() -> ResponseSpec:
    """Return the response at a bound of this gateway process; another gateway may have room."""
    return ResponseSpec(429, "rate_limit_error", "slow_down", "rate_limit_error", ErrorOwner.GATEWAY)


_NO_POD = "service_unavailable_error"

RESPONSES: dict[Reason, ResponseSpec] = {
    Reason.BAD_REQUEST: _client(400, "invalid_value"),
    Reason.BAD_JSON: _client(400, "invalid_json"),
    Reason.UNKNOWN_PATH: _client(404, "unknown_url", anthropic="not_found_error"),
    Reason.METHOD_NOT_ALLOWED: _client(405, "method_not_supported"),
    Reason.UNSUPPORTED_MEDIA_TYPE: _client(415, "unsupported_media_type"),
    Reason.BODY_TOO_LARGE: _client(413, "request_too_large", anthropic="request_too_large"),
    Reason.HEADERS_TOO_LARGE: _client(431, "headers_too_large"),
    Reason.URL_TOO_LONG: _client(414, "url_too_long"),
    Reason.REQUEST_TIMEOUT: ResponseSpec(
        408, "invalid_request_error", "request_timeout", "invalid_request_error", ErrorOwner.CLIENT
    ),
    Reason.EXPECTATION_FAILED: _client(417, "expectation_failed"),
    Reason.UNKNOWN_MODEL: _client(404, "model_not_found", anthropic="not_found_error"),
    Reason.MODEL_NOT_ALLOWED: _client(404, "model_not_found", anthropic="not_found_error"),
    Reason.RESPONSE_NOT_FOUND: _client(404, "response_not_found", anthropic="not_found_error"),
    Reason.INVALID_KEY: _client(401, "invalid_api_key", anthropic="authentication_error"),
    Reason.REGION_NOT_ALLOWED: _client(403, "region_not_allowed", anthropic="permission_error"),
    Reason.PROVIDER_NOT_ALLOWED: _client(403, "provider_not_allowed", anthropic="permission_error"),
    # openai-python retries 409: only `x-should-retry` prevents a retry of the superseded request.
    Reason.SUPERSEDED: _client(409, "superseded"),
    Reason.RATE_LIMITED_REQUESTS: _spent("requests"),
    Reason.RATE_LIMITED_TOKENS: _spent("tokens"),
    Reason.TOO_MANY_PARALLEL_REQUESTS: _spent("requests"),
    Reason.BUDGET_EXHAUSTED: _spent("insufficient_quota", "insufficient_quota", hopeless=True),
    Reason.PROVIDER_LIMIT: _spent("insufficient_quota", "provider_limit"),
    Reason.OVERLOADED: _shed(),
    Reason.QUEUE_FULL: _shed(),
    Reason.QUEUE_TIMEOUT: _shed(),
    Reason.BODY_MEMORY_EXHAUSTED: _saturated(),
    Reason.TOO_MANY_CONNECTIONS: _saturated(),
    Reason.GATEWAY_DRAINING: ResponseSpec(503, _NO_POD, "server_is_overloaded", "overloaded_error", ErrorOwner.GATEWAY),
    Reason.GATEWAY_ERROR: ResponseSpec(500, "server_error", "internal_error", "api_error", ErrorOwner.GATEWAY),
    Reason.JWKS_UNAVAILABLE: ResponseSpec(503, _NO_POD, "server_is_overloaded", "overloaded_error", ErrorOwner.GATEWAY),
    Reason.NO_POD_READY: ResponseSpec(503, _NO_POD, "server_is_overloaded", "overloaded_error", ErrorOwner.POD),
    Reason.POD_UNREACHABLE: _pod(502, "pod_unreachable"),
    Reason.POD_LOST: _pod(502, "pod_lost"),
    Reason.POD_TIMEOUT: _pod(504, "pod_timeout"),
    Reason.POD_INVALID_RESPONSE: _pod(502, "pod_invalid_response"),
    Reason.POD_BUSY: ResponseSpec(503, _NO_POD, "server_is_overloaded", "overloaded_error", ErrorOwner.POD),
    Reason.POD_ERROR: _pod(502, "pod_error"),
}

ANTHROPIC_OVERLOADED = 529


DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"
DROPPED_REASONS: dict[Reason, str] = {
    Reason.OVERLOADED: "rejected-saturated",
    Reason.QUEUE_FULL: "rejected-saturated",
    Reason.BODY_MEMORY_EXHAUSTED: "rejected-saturated",
    Reason.TOO_MANY_CONNECTIONS: "rejected-saturated",
    Reason.QUEUE_TIMEOUT: "rejected-ttl-expired",
}
"""Values of llm-d's header for requests dropped under load (`pkg/common/error/error.go` of llm-d-router).

llm-d has no value for a tenant's own limits; the header is left out there, and on every status but 429.
"""


def status_of(reason: Reason, *, anthropic: bool = False) -> int:
    """Return the HTTP status of a reason."""
    spec = RESPONSES[reason]
    return ANTHROPIC_OVERLOADED if anthropic and spec.anthropic == "overloaded_error" else spec.status


def rejection_headers(rejection: RequestRejected, *, anthropic: bool = False) -> dict[str, str]:
    """Return retry hints, our own reason, the owner of the fault and llm-d's reason where it has one for a 429."""
    spec = RESPONSES[rejection.reason]
    headers = {
        "x-hearth-reason": rejection.reason.value,
        "x-hearth-fault": spec.fault.value,
    }
    dropped = DROPPED_REASONS.get(rejection.reason)
    if dropped is not None and status_of(rejection.reason, anthropic=anthropic) == 429:
        headers[DROPPED_REASON_HEADER] = dropped
    if rejection.retry_after_s is not None and isfinite(rejection.retry_after_s):
        headers["retry-after"] = str(max(1, ceil(rejection.retry_after_s)))
        headers["retry-after-ms"] = str(max(1, ceil(rejection.retry_after_s * 1000)))
    if spec.hopeless or rejection.is_permanent:
        headers["x-should-retry"] = "false"
    if isinstance(rejection, QuotaExceeded):
        headers.update(rejection.fields)
    return headers


def rejection_body(rejection: RequestRejected, *, anthropic: bool, request_id: str) -> bytes:
    """Return the JSON body of a rejection, in OpenAI's or Anthropic's format."""
    spec = RESPONSES[rejection.reason]
    if anthropic:
        error = {"type": spec.anthropic, "message": rejection.message}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
    return msgspec.json.encode(
        {
            "error": {
                "message": rejection.message,
                "type": spec.type,
                "param": rejection.param,
                "code": spec.code,
            }
        }
    )


def rejection_event(rejection: RequestRejected, *, anthropic: bool, request_id: str) -> bytes:
    """The same inside a stream that has begun, as one server-sent event."""
    body = rejection_body(rejection, anthropic=anthropic, request_id=request_id)
    return b"event: error\ndata: " + body + b"\n\n" if anthropic else b"data: " + body + b"\n\n"
