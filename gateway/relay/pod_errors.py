"""What a pod says when it says no, in any of its shapes, and the same told to a client in the dialect it speaks.

vLLM has four: `{"error": {...}}` with a number for a code, `{"type": "error", ...}`, `{"detail": ...}` and
`{"error": "Unauthorized"}`. A client gets OpenAI's or Anthropic's, with a string for a code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

MESSAGE_CHARS = 2000
"""Of a pod's message; validation errors of a large body quote it."""

BUSY_WORDS = "currently busy and cannot accept new requests"
"""On /v1/messages a full vLLM says so inside an internal error."""

CONTEXT_LENGTH = "maximum context length"

CODES = {400: "invalid_value", 404: "not_found", 409: "conflict", 413: "request_too_large", 422: "invalid_value"}
ANTHROPIC_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    401: "authentication_error",
    403: "permission_error",
}


@dataclass(frozen=True, slots=True)
class PodError:
    """A pod's no. `param` is the field it blames, as a path."""

    status: int
    message: str
    param: str | None = None

    @property
    def is_clients(self) -> bool:
        return self.status < 500


class Detail(Struct):
    message: str | None = None
    param: str | None = None
    code: int | str | None = None


class Told(Struct):
    """All shapes in one."""

    type: str = ""
    error: Detail | str | None = None
    detail: str | list[object] | None = None
    message: str | None = None


TOLD = msgspec.json.Decoder(Told)


def read_error(status: int, body: bytes) -> PodError:
    """A pod's error answer; where it is in no shape we know, only its status speaks."""
    try:
        told = TOLD.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return PodError(status, f"The pod answered {status}.")
    detail = told.error if isinstance(told.error, Detail) else Detail()
    words = told.error if isinstance(told.error, str) else told.detail if isinstance(told.detail, str) else None
    message = detail.message or words or told.message or f"The pod answered {status}."
    param = detail.param.removeprefix("body.") if detail.param else None
    return PodError(status, message[:MESSAGE_CHARS], param)


def read_stream_error(told: bytes) -> PodError | None:
    """The error that an event of a stream is, None where it is none."""
    try:
        event = TOLD.decode(told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if event.error is None and event.type != "error":
        return None
    code = event.error.code if isinstance(event.error, Detail) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    error = read_error(status, told)
    return replace(error, status=503) if BUSY_WORDS in error.message else error


def about_model(error: PodError, model: str, path: str) -> PodError:
    """FastAPI's "Not Found" means that the pod serves no such API for its kind of model: say so."""
    if error.status == 404 and error.message == "Not Found":
        if not model:  # It was asked for by the id of what a pod has stored.
            return replace(error, message=f"The pod that has it does not serve {path}.")
        return replace(error, message=f"The model `{model}` does not serve {path}.", param="model")
    return error


def error_body(error: PodError, *, anthropic: bool, request_id: str) -> bytes:
    """The JSON body for the client."""
    if anthropic:
        kind = ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
        told = {"type": kind, "message": error.message}
        return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})
    told_openai = {
        "message": error.message,
        "type": "invalid_request_error",
        "param": error.param,
        "code": _code(error),
    }
    return msgspec.json.encode({"error": told_openai})


def error_event(error: PodError, *, anthropic: bool, request_id: str) -> bytes:
    """The same as an event of a stream."""
    name = b"event: error\n" if anthropic else b""
    return name + b"data: " + error_body(error, anthropic=anthropic, request_id=request_id) + b"\n\n"


def _code(error: PodError) -> str:
    if CONTEXT_LENGTH in error.message:
        return "context_length_exceeded"
    if error.status == 404 and error.param == "model":
        return "unsupported_api" if "does not serve" in error.message else "model_not_found"
    return CODES.get(error.status, "invalid_request")
