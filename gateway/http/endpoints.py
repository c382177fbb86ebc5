"""The table of served paths. A path that is not in it is rejected, never forwarded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

from routing.rejection import Reason, Refused
from routing.request import Api


class Local(Enum):
    """Endpoints without placement: answered by the gateway, or by the one pod that stores the response."""

    HEALTH = "health"
    READY = "ready"
    MODELS = "models"
    MODEL = "model"
    STORED_RESPONSE = "stored response"
    PREFLIGHT = "preflight"
    """CORS preflight; `name` of its endpoint lists the methods of the path."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path. With `api` its requests are placed on a pod, else `local` is set."""

    path: str
    methods: tuple[str, ...] = ("POST",)
    api: Api | None = None
    local: Local | None = None
    name: str = ""
    """Last part of the path: name of a model, id of a stored response."""
    needs_key: bool = field(init=False)
    counted_as: Api | None = field(init=False)
    """The API under which requests are logged and counted against limits; None for local endpoints."""
    is_anthropic: bool = field(init=False)
    """Whether errors have the format of Anthropic's API."""

    def __post_init__(self) -> None:
        is_stored = self.local is Local.STORED_RESPONSE
        object.__setattr__(self, "needs_key", self.local not in (Local.HEALTH, Local.READY, Local.PREFLIGHT))
        object.__setattr__(self, "counted_as", Api.RESPONSES if is_stored else self.api)
        object.__setattr__(self, "is_anthropic", self.path.startswith("/v1/messages"))

    @property
    def allow(self) -> str:
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

READ = ("GET", "HEAD")

TABLE: dict[bytes, Endpoint] = {
    **{path.encode(): Endpoint(path, api=api) for api, paths in PATHS.items() for path in paths},
    b"/health": Endpoint("/health", READ, local=Local.HEALTH),
    b"/ready": Endpoint("/ready", READ, local=Local.READY),
    b"/v1/models": Endpoint("/v1/models", READ, local=Local.MODELS),
}

MODELS_BELOW = "/v1/models/"
RESPONSES_BELOW = "/v1/responses/"
CANCEL = "/cancel"


def find_endpoint(target: bytes) -> Endpoint:
    """Return the endpoint of a request target. Raises `Refused` if there is none.

    The path is compared as sent, without normalization: a proxy that forwards `//x/v1/models` or `/v1/./models` as it
    stands could make a pod read another path than the one checked here. Exact targets are in `TABLE`.
    """
    path = _path_of(target)
    endpoint = TABLE.get(path.encode())
    if endpoint is not None:
        return endpoint
    if path.startswith(MODELS_BELOW) and path != MODELS_BELOW:
        return Endpoint(path, READ, local=Local.MODEL, name=unquote(path.removeprefix(MODELS_BELOW)))
    if path.startswith(RESPONSES_BELOW):
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


def _find_response(path: str) -> Endpoint:
    name = path.removeprefix(RESPONSES_BELOW)
    methods: tuple[str, ...] = ("GET", "DELETE")
    if name.endswith(CANCEL):
        name, methods = name.removesuffix(CANCEL), ("POST",)
    if not name or not name.replace("_", "").replace("-", "").isalnum():
        raise _unknown(path)
    return Endpoint(path, methods, local=Local.STORED_RESPONSE, name=name)


def _unknown(path: str) -> Refused:
    return Refused(Reason.UNKNOWN_PATH, f"There is nothing at {path[:200]!r}.")
