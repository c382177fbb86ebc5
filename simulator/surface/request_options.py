"""What chat and completions let a client ask for beyond the prompt itself, checked the way vLLM checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from aiohttp import web

from simulator.faults import NO_FAULT, FaultKind
from simulator.options import Options
from simulator.prompts import Prompt
from simulator.script import Wish
from simulator.service import Order, Service
from simulator.surface.fields import Body
from simulator.surface.wire import BEFALLEN, ApiError, malformed

MAX_COPIES = 16_384
MAX_STOPS = 4
MAX_SALT = 128
NOT_IN_SALTS = frozenset("@/\\\0")


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """One request's wishes, apart from its prompt."""

    model: str
    request_id: str
    rank: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    copies: int
    max_tokens: int | None
    wish: Wish
    """Its `max_tokens` is not settled before the prompt is known."""
    salt: str
    priority: int
    returns_token_ids: bool
    transfer: Mapping[str, Any] = field(default_factory=dict)
    """`kv_transfer_params`."""
    aborts_after: int | None = None
    returns_prompt_text: bool = False

    def order(self, options: Options, prompts: Sequence[Prompt], recital: str | None = None) -> Order:
        """The order for these prompts, once they are known to fit."""
        max_prompt_tokens = max(len(prompt.tokens) for prompt in prompts)
        max_output = settle_max_tokens(options, max_prompt_tokens, self.max_tokens)
        if self.wish.min_tokens > max_output:
            raise ApiError(
                f"min_tokens must be less than or equal to max_tokens={max_output}, got {self.wish.min_tokens}."
            )
        wish = Wish(max_output, self.wish.min_tokens, self.wish.ignores_end, self.wish.stop, self.wish.shows_stop)
        return Order(
            model=self.model,
            prompts=prompts,
            wish=wish,
            request_id=self.request_id,
            copies=self.copies,
            recital=recital,
            salt=self.salt,
            priority=self.priority,
            rank=self.rank,
            transfer=self.transfer,
            aborts_after=self.aborts_after,
        )


def read_request_options(
    service: Service, request: web.Request, body: Body, default_max_tokens: int | None
) -> RequestOptions:
    """Everything but the prompt."""
    options = body.object("stream_options")
    stream = body.flag("stream")
    if body.get("stream_options") is not None and not stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", param="stream_options")
    check_ignored(body)
    max_tokens = body.integer("max_completion_tokens")
    max_tokens = body.integer("max_tokens", default_max_tokens) if max_tokens is None else max_tokens
    include_usage = options.flag("include_usage")
    return RequestOptions(
        model=known_model(service, body),
        request_id=request_id_of(request, body),
        rank=rank_of(service, request),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options.flag("continuous_usage_stats"),
        copies=_copies(body),
        max_tokens=max_tokens,
        wish=Wish(
            max_tokens=0,
            min_tokens=body.integer("min_tokens", 0, low=0) or 0,
            ignores_end=body.flag("ignore_eos"),
            stop=_stops(body),
            shows_stop=body.flag("include_stop_str_in_output"),
        ),
        salt=salt_of(body),
        priority=body.integer("priority", 0) or 0,
        returns_token_ids=body.flag("return_token_ids"),
        returns_prompt_text=body.flag("return_prompt_text"),
        transfer=body.object("kv_transfer_params").fields,
        aborts_after=aborts_after(request),
    )


def aborts_after(request: web.Request) -> int | None:
    """After how many tokens this request's answer is to be aborted, if it is."""
    fault = request.get(BEFALLEN, NO_FAULT)
    return fault.after_chunks if fault.kind is FaultKind.ABORT else None


def check_ignored(body: Body) -> None:
    """Fields that change nothing here, but must be what vLLM wants them to be."""
    body.number("temperature", 0.0, float("inf"))
    body.number("top_p", 0.0, 1.0)
    body.integer("seed")
    for name in ("kv_transfer_params", "vllm_xargs", "logit_bias"):
        body.object(name)


def _copies(body: Body) -> int:
    copies = body.integer("n", 1)
    if copies is None or not 1 <= copies <= MAX_COPIES:
        raise ApiError(f"n must be from 1 to {MAX_COPIES}, got {copies}.")
    return copies


def _stops(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise malformed("stop", "string_type", "Input should be a valid string", stop)
    if len(stops) > MAX_STOPS:
        raise ApiError(f"stop must have at most {MAX_STOPS} items.", param="stop")
    return tuple(stops)


def salt_of(body: Body) -> str:
    """Return the cache salt; "" if unset. Raises `ApiError` for what vLLM 0.32 rejects."""
    salt = body.text("cache_salt")
    if salt == "":
        raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if salt and (len(salt) > MAX_SALT or not NOT_IN_SALTS.isdisjoint(salt)):
        raise ApiError(
            f"Parameter 'cache_salt' must have at most {MAX_SALT} characters, none of them '@', '/', '\\' or NUL.",
            param="cache_salt",
        )
    return salt or ""


def known_model(service: Service, body: Body) -> str:
    """The model asked for; without a name it is the pod's own."""
    name = body.text("model")
    if not name:
        return service.options.models[0]
    if not service.has_model(name):
        aliases = ", ".join((*service.options.models, *service.options.adapters))
        raise ApiError(f"The model `{name}` does not exist. Valid aliases: {aliases}.", "NotFoundError", "model", 404)
    return name


def request_id_of(request: web.Request, body: Body) -> str:
    """The body's id, the header's, or one of our own; without the API's prefix."""
    return body.text("request_id") or request.headers.get("X-Request-Id") or uuid4().hex


def rank_of(service: Service, request: web.Request) -> int | None:
    """The data-parallel rank that the header names; a value that is not a number counts as absent."""
    try:
        rank = int(request.headers.get("X-data-parallel-rank", ""))
    except ValueError:
        return None
    if not 0 <= rank < len(service.ranks):
        raise ApiError(f"data_parallel_rank {rank} is out of range [0, {len(service.ranks)}).")
    return rank


def settle_max_tokens(options: Options, prompt_tokens: int, requested: int | None) -> int:
    """How long an answer may get behind a prompt of this length."""
    room = options.window_tokens - prompt_tokens
    if room < 1:
        raise ApiError(
            f"This model's maximum context length is {options.window_tokens} tokens. However, your prompt contains at "
            f"least {prompt_tokens} input tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    if requested is None:
        return room
    if requested < 1:
        raise ApiError(f"max_tokens must be at least 1, got {requested}.", param="max_tokens")
    if requested > room:
        raise ApiError(
            f"'max_tokens' is too large: {requested}. This model's maximum context length is {options.window_tokens} "
            f"tokens and your request has {prompt_tokens} input tokens.",
            param="max_tokens",
        )
    return requested
