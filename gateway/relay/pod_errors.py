"""Errors of pods: read in any of their formats, and written for a client in the format of its API.

vLLM has four: `{"error": {...}}` with a number for a code, `{"type": "error", ...}`, `{"detail": ...}` and
`{"error": "Unauthorized"}`. A client gets OpenAI's or Anthropic's, with a string for a code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

MAX_MESSAGE_CHARS = 2000
"""Characters kept of a pod's message; validation errors quote the body, however large."""

BUSY_MESSAGE = "currently busy and cannot accept new requests"
"""On /v1/messages a full vLLM reports so inside an internal error."""

CONTEXT_LENGTH_MESSAGE = "maximum context length"

CODES = {400: "invalid_value", 404: "not_found", 409: "conflict", 413: "request_too_large", 422: "invalid_value"}
ANTHROPIC_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    401: "authentication_error",
    403: "permission_error",
}


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """An error that a pod has reported. `param` is the path of the field that is wrong, None where it names none."""

    status: int
    message: str
    param: str | None = None

    @property
    def is_client_error(self) -> bool:
        """Whether the request is at fault, not the pod."""
        return self.status < 500


class _Detail(Struct):
    message: str | None = None
    param: str | None = None
    code: int | str | None = None


class _RawError(Struct):
    """All formats in one."""

    type: str = ""
    error: _Detail | str | None = None
    detail: str | list[object] | None = None
    message: str | None = None


_RAW = msgspec.json.Decoder(_RawError)


def read_error(status: int, body: bytes) -> UpstreamError:
    """Read the error of a response; of a body in an unknown format only the status."""
    try:
        raw = _RAW.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UpstreamError(status, f"The pod answered {status}.")
    detail = raw.error if isinstance(raw.error, _Detail) else _Detail()
    text = raw.error if isinstance(raw.error, str) else raw.detail if isinstance(raw.detail, str) else None
    message = detail.message or text or raw.message or f"The pod answered {status}."
    param = detail.param.removeprefix("body.") if detail.param else None
    return UpstreamError(status, message[:MAX_MESSAGE_CHARS], param)


def read_stream_error(payload: bytes) -> UpstreamError | None:
    """Read the error that an event of a stream carries, None where it carries none."""
    try:
        event = _RAW.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if event.error is None and event.type != "error":
        return None
    code = event.error.code if isinstance(event.error, _Detail) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    error = read_error(status, payload)
    return replace(error, status=503) if BUSY_MESSAGE in error.message else error


def explain_not_found(error: UpstreamError, model: str, path: str) -> UpstreamError:
    """Word FastAPI's "Not Found" for the client: the pod does not serve this API for its kind of model."""
    if error.status == 404 and error.message == "Not Found":
        if not model:  # The request named a stored response, not a model.
            return replace(error, message=f"The pod that has it does not serve {path}.")
        return replace(error, message=f"The model `{model}` does not serve {path}.", param="model")
    return error


def error_body(error: UpstreamError, *, anthropic: bool, request_id: str) -> bytes:
    """Return the JSON body of an error response for the client."""
    if anthropic:
        kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
        anthropic_error = {"type": kind, "message": error.message}
        return msgspec.json.encode({"type": "error", "error": anthropic_error, "request_id": request_id})
    openai_error = {
        "message": error.message,
        "type": "invalid_request_error",
        "param": error.param,
        "code": _code(error),
    }
    return msgspec.json.encode({"error": openai_error})


def error_event(error: UpstreamError, *, anthropic: bool, request_id: str) -> bytes:
    """Return the error as an event of a stream for the client."""
    name = b"event: error\n" if anthropic else b""
    return name + b"data: " + error_body(error, anthropic=anthropic, request_id=request_id) + b"\n\n"


def _code(error: UpstreamError) -> str:
    if CONTEXT_LENGTH_MESSAGE in error.message:
        return "context_length_exceeded"
    if error.status == 404 and error.param == "model":
        return "unsupported_api" if "does not serve" in error.message else "model_not_found"
    return CODES.get(error.status, "invalid_request")
