"""A request as decisions use it: its size and prefix hashes, never its text.

Built once per request from bytes at the edge; independent of HTTP.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from routing.blocks import EMPTY_PROMPT, Prompt
from routing.cache_lookup import CacheLookup
from routing.pods import NO_GRANTS, ProviderGrant


class Api(StrEnum):
    """The kind of call; one value per wire dialect."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    POOLING = "pooling"
    CLASSIFY = "classify"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"

    # An enum's own hash is a Python function, and every request is looked up by this in a dozen tables.
    __hash__ = str.__hash__

    @property
    def generates(self) -> bool:
        """Whether answers are decoded token by token (and may be streamed)."""
        return self in GENERATING

    @property
    def is_anthropic(self) -> bool:
        """Whether errors have Anthropic's shape."""
        return self is Api.MESSAGES


GENERATING = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})

DEFAULT_OUTPUT_TOKENS = 256
"""What an answer is taken to be when the client sets no limit; settled with the real length."""


class Usage(
    Struct,
    frozen=True,
    gc=False,
    rename={
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "cached_tokens": "cached_input_tokens",
    },
):
    """Tokens of a request as the engine reports them. `cached_tokens` is None where the engine does not report them."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None


class Arrival(Struct, frozen=True, gc=False):
    """How a request reached its front end: for its record alone."""

    path: str = ""
    """Path of its endpoint; empty where no client sent it."""
    client_request_id: str | None = None
    """The client's own id of it (`x-request-id`)."""


class Request(Struct, frozen=True, gc=False):
    """The facts of one request.

    `session` ties turns of one conversation together where the client names it; `continues` is the response id a
    responses request builds on, which only the pod that made it can resolve.
    """

    id: str
    api: Api
    model: str
    prompt: Prompt = EMPTY_PROMPT
    stream: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    """No response ends before this many tokens."""
    unseen_bytes: int = 0
    """Of fields that become prompt beside the text, and so are not in `prompt`: templates, documents, their values."""
    sequences: int = 1
    session: str | None = None
    continues: str | None = None
    tenant: str | None = None
    """Name of the tenant; None without tenants."""
    regions: frozenset[str] | None = None
    """Where it may be computed, None for anywhere."""
    pods: frozenset[str] | None = None
    """URLs of those that may serve it, None for all."""
    grants: frozenset[ProviderGrant] = NO_GRANTS
    """Where outside the fleet it may be computed; empty for nowhere."""
    priority: int = 0
    """Scheduling priority within an engine that supports it: higher first."""
    downgraded_from: str | None = None
    """The larger model that was requested, where `model` answers in its place."""
    reads_cache: bool = True
    """Its engine looks its prompt up in the prefix cache."""
    shows_cache: bool = True
    """Usage says how much of the prompt was cached: it is one prompt, read from the cache, and equal ones are equal to
    the engine.
    """
    counts_text: bool = True
    """The tokens of its prompt are those of its text: its client neither has the prompt cut nor brings a template."""
    retry_count: int = 0
    """How often its client says that it has asked before."""
    is_constrained: bool = False
    """A grammar may restrict its answer: it has tools or a schema."""
    requested_model: str | None = None
    """The model as its client named it: an alias, a cascade, or the model before a downgrade; None where unknown."""
    arrival: Arrival = Arrival()
    is_beam_search: bool = False
    """Its engine tells nothing of its answers before their end, streamed or not."""
    is_single_engine: bool = False
    """Its prefill and its answer belong on one engine: it asks for something of the prompt, or has failed as a pair."""
    holds_back: bool = False
    """Its engine may tell nothing of what it makes for long: calls of tools until they are whole, hidden thoughts."""
    lookup: CacheLookup | None = None
    """The precise prefix-cache lookup, where one was requested and answered in time."""

    @property
    def may_pair(self) -> bool:
        """Whether another engine may do its prefill. The KV of a prompt is handed over once, so it has one answer."""
        return not self.is_single_engine and self.api in GENERATING and self.sequences == 1 and self.continues is None

    @property
    def expected_output_tokens(self) -> int:
        """How many tokens the answer is taken to have, all sequences together."""
        if self.api not in GENERATING:
            return 0
        each = DEFAULT_OUTPUT_TOKENS if self.max_tokens is None else min(self.max_tokens, DEFAULT_OUTPUT_TOKENS)
        return each * self.sequences
