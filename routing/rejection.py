"""Rejections of requests: one exception and the closed list of reasons.

The table in `gateway/pipeline/rejections.py` turns a reason into status, code and headers.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorOwner(StrEnum):
    """Which side has to act for the request to succeed."""

    CLIENT = "client"
    GATEWAY = "gateway"
    POD = "pod"


class Reason(StrEnum):
    """Every rejection that Hearth makes on purpose. The value is the stable machine code of our own header."""

    # To be fixed by the client.
    BAD_REQUEST = "bad_request"
    BAD_JSON = "bad_json"
    UNKNOWN_PATH = "unknown_path"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    URL_TOO_LONG = "url_too_long"
    REQUEST_TIMEOUT = "request_timeout"
    EXPECTATION_FAILED = "expectation_failed"
    UNKNOWN_MODEL = "unknown_model"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    RESPONSE_NOT_FOUND = "response_not_found"
    INVALID_KEY = "invalid_key"
    REGION_NOT_ALLOWED = "region_not_allowed"
    """The model is served, but nowhere that the tenant's requests may be computed."""
    PROVIDER_NOT_ALLOWED = "provider_not_allowed"
    """The model is served outside the fleet only, where the tenant's requests may not be sent."""
    SUPERSEDED = "superseded"
    """A newer request of the same tenant has named this one's key."""

    # What the tenant has left to use.
    RATE_LIMITED_REQUESTS = "rate_limited_requests"
    RATE_LIMITED_TOKENS = "rate_limited_tokens"
    TOO_MANY_PARALLEL_REQUESTS = "too_many_parallel_requests"
    BUDGET_EXHAUSTED = "budget_exhausted"
    PROVIDER_LIMIT = "provider_limit"
    """A limit on what is sent to providers is reached: money, share of requests, or parallel requests."""

    # The fleet cannot meet the objective.
    OVERLOADED = "overloaded"
    """No engine can meet the request's objective."""
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    """It has waited for as long as its tier waits."""

    # Ours.
    BODY_MEMORY_EXHAUSTED = "body_memory_exhausted"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    GATEWAY_DRAINING = "gateway_draining"
    GATEWAY_ERROR = "gateway_error"
    JWKS_UNAVAILABLE = "jwks_unavailable"
    """A token cannot be verified before its issuer's keys were fetched."""

    # The fleet's.
    NO_POD_READY = "no_pod_ready"
    POD_UNREACHABLE = "pod_unreachable"
    POD_LOST = "pod_lost"
    POD_TIMEOUT = "pod_timeout"
    POD_INVALID_RESPONSE = "pod_invalid_response"
    POD_BUSY = "pod_busy"
    POD_ERROR = "pod_error"


class RequestRejected(Exception):  # noqa: N818 - a refusal is an answer, not an error
    """The one exception that decisions raise on purpose.

    `param` names the field of the request that is to blame, as a path (`messages[2].content`), where one is.
    `retry_after_s` is an honest estimate of when to come back, where there is one; `hopeless`: never, unchanged.
    `predicted_ttft_s` and `slo_ttft_s` are seconds from arrival to the first token, where admission has compared
    them.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        hopeless: bool = False,
        predicted_ttft_s: float | None = None,
        slo_ttft_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.is_permanent = hopeless
        self.predicted_ttft_s = predicted_ttft_s
        self.objective_ttft_s = slo_ttft_s

    def __repr__(self) -> str:
        where = f", param={self.param!r}" if self.param else ""
        return f"RequestRejected({self.reason.value}, {self.message!r}{where})"
