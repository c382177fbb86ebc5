"""What is served under which path. One table; a path that is not in it is refused, never forwarded."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from routing.rejection import Reason, Refused
from routing.request import Api


class Local(Enum):
    """What the gateway answers itself, or sends to the one pod that knows."""

    HEALTH = "health"
    READY = "ready"
    MODELS = "models"
    MODEL = "model"
    STORED_RESPONSE = "stored response"
    PREFLIGHT = "preflight"
    """What a browser asks before it lets a page ask; `name` is what the path allows."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path. Served by a pod that is chosen where `api` is set, else as `local` says."""

    path: str
    methods: tuple[str, ...] = ("POST",)
    api: Api | None = None
    local: Local | None = None
    name: str = ""
    """What a path below names: a model, a stored response."""

    @property
    def needs_key(self) -> bool:
        return self.local not in (Local.HEALTH, Local.READY, Local.PREFLIGHT)

    @property
    def counted_as(self) -> Api | None:
        """As requests of which API its requests are logged and counted against limits; None for pages of our own."""
        return Api.RESPONSES if self.local is Local.STORED_RESPONSE else self.api

    @property
    def is_anthropic(self) -> bool:
        """Whether errors are told in Anthropic's dialect."""
        return self.path.startswith("/v1/messages")

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
    """The endpoint of a request target. Raises `Refused` where there is none.

    Only a path in normal form has one: it is compared as it was sent. Were `//x/v1/models` or `/v1/./models` judged by
    what they may mean, whoever carries the request could forward it as it stands, and a pod could read it otherwise.
    """
    return TABLE.get(target) or _find(target)


def _path_of(target: bytes) -> str:
    """Return the path of a request target as it was sent; empty where there is none.

    A target in absolute form (`http://host/path`) is accepted, as RFC 9112 asks of servers.
    """
    raw = target.partition(b"?")[0]
    if raw[:1] != b"/":
        scheme, _, rest = raw.partition(b"://")
        _, slash, rest = rest.partition(b"/")
        raw = slash + rest if scheme.lower() in (b"http", b"https") else b""
    return raw.decode("ascii", "replace")


def _find(target: bytes) -> Endpoint:
    path = _path_of(target)
    endpoint = TABLE.get(path.encode())
    if endpoint is not None:
        return endpoint
    if path.startswith(MODELS_BELOW) and path != MODELS_BELOW:
        return Endpoint(path, READ, local=Local.MODEL, name=unquote(path.removeprefix(MODELS_BELOW)))
    if path.startswith(RESPONSES_BELOW):
        return _find_response(path)
    raise _unknown(path)


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
