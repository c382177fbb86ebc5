"""The table of served paths. A path that is not in it is rejected, never forwarded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

from routing.rejection import Reason, RequestRejected
from routing.request import Api


class LocalEndpoint(Enum):
    """Endpoints without placement: answered by the gateway, or by the one pod that stores the response."""

    HEALTH = "health"
    READY = "ready"
    MODELS = "models"
    MODEL = "model"
    STORED_RESPONSE = "stored response"
    PREFLIGHT = "preflight"
    """CORS preflight; `name` of its endpoint lists the methods of the path."""


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One path. With `api` its requests are placed on a pod, else `local` is set."""

    path: str
    methods: tuple[str, ...] = ("POST",)
    api: Api | None = None
    local: LocalEndpoint | None = None
    name: str = ""
    """Last part of the path: name of a model, id of a stored response."""
    needs_key: bool = field(init=False)
    accounted_api: Api | None = field(init=False)
    """The API under which requests are logged and counted against limits; None for local endpoints."""
    is_anthropic: bool = field(init=False)
    """Whether errors have the format of Anthropic's API."""

    def __post_init__(self) -> None:
        is_stored = self.local is LocalEndpoint.STORED_RESPONSE
        object.__setattr__(
            self, "needs_key", self.local not in (LocalEndpoint.HEALTH, LocalEndpoint.READY, LocalEndpoint.PREFLIGHT)
        )
        object.__setattr__(self, "accounted_api", Api.RESPONSES if is_stored else self.api)
        object.__setattr__(self, "is_anthropic", self.path.startswith("/v1/messages"))

    @property
    def allowed_methods(self) -> str:
        """The value of the Allow header."""
        return ", ".join(self.methods)


PATHS: dict[Api, tuple[str, ...]] = {
    Api.CHAT: ("/v1/chat/completions",),
    Api.COMPLETIONS: ("/v1/completions",),
    Api.RESPONSES: ("/v1/responses",),
    Api.MESSAGES: ("/v1/messages",),
    Api.EMBEDDINGS: ("/v1/embeddings",),
    Api.RERANK: ("/v1/rerank", "/rerank", "/v2/rerank"),
    Api.SCORE: ("/v1/score", "/score"),
    Api.POOLING: ("/pooling",),
    Api.CLASSIFY: ("/classify",),
    Api.TOKENIZE: ("/tokenize", "/v1/messages/count_tokens"),
    Api.DETOKENIZE: ("/detokenize",),
}

READ_METHODS = ("GET", "HEAD")

ENDPOINTS: dict[bytes, ApiEndpoint] = {
    **{path.encode(): ApiEndpoint(path, api=api) for api, paths in PATHS.items() for path in paths},
    b"/health": ApiEndpoint("/health", READ_METHODS, local=LocalEndpoint.HEALTH),
    b"/ready": ApiEndpoint("/ready", READ_METHODS, local=LocalEndpoint.READY),
    b"/v1/models": ApiEndpoint("/v1/models", READ_METHODS, local=LocalEndpoint.MODELS),
}

MODELS_PREFIX = "/v1/models/"
RESPONSES_PREFIX = "/v1/responses/"
CANCEL_SUFFIX = "/cancel"


def find_endpoint(target: bytes) -> ApiEndpoint:
    """Return the endpoint of a request target. Raises `RequestRejected` if there is none.

    The path is compared as sent, without normalization: a proxy that forwards `//x/v1/models` or `/v1/./models` as it
    stands could make a pod read another path than the one checked here. Exact targets are in `ENDPOINTS`.
    """
    path = _path_of(target)
    endpoint = ENDPOINTS.get(path.encode())
    if endpoint is not None:
        return endpoint
    if path.startswith(MODELS_PREFIX) and path != MODELS_PREFIX:
        return ApiEndpoint(
            path, READ_METHODS, local=LocalEndpoint.MODEL, name=unquote(path.removeprefix(MODELS_PREFIX))
        )
    if path.startswith(RESPONSES_PREFIX):
        return _find_response(path)
    raise _unknown(path)


def _path_of(target: bytes) -> str:
    """Return the path of a request target as sent; empty if there is none.

    A target in absolute form (`http://host/path`) is accepted, as RFC 9112 asks of servers.
    """
    raw = target.partition(b"?")[0]
    if raw[:1] != b"/":
        scheme, _, rest = raw.partition(b"://")
        _, slash, rest = rest.partition(b"/")
        raw = slash + rest if scheme.lower() in (b"http", b"https") else b""
    return raw.decode("ascii", "replace")


def _find_response(path: str) -> ApiEndpoint:
    name = path.removeprefix(RESPONSES_PREFIX)
    methods: tuple[str, ...] = ("GET", "DELETE")
    if name.endswith(CANCEL_SUFFIX):
        name, methods = name.removesuffix(CANCEL_SUFFIX), ("POST",)
    if not name or not name.replace("_", "").replace("-", "").isalnum():
        raise _unknown(path)
    return ApiEndpoint(path, methods, local=LocalEndpoint.STORED_RESPONSE, name=name)


def _unknown(path: str) -> RequestRejected:
    return RequestRejected(Reason.UNKNOWN_PATH, f"Unknown path {path[:200]!r}.")
