"""The record of one request, from which its receipt, log line, usage record, route record and metrics are made.

The pipeline writes it, through the request's context; all others read it. A fact is declared once: a field of `Receipt`
is shown on receipts, a field or property of `Outcome` can be named in any list of `RecordFields`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar

from msgspec import Struct, defstruct

from cascade.record import CascadeResult
from gateway.pipeline.attempt import ResumeBlocker
from gateway.runtime.events import EVENTS, format_timestamp
from gateway.runtime.trace_context import RequestTrace
from routing.blocks import EMPTY_PROMPT, Prompt
from routing.decision.placement import AttemptReceipt
from routing.rejection import Reason
from routing.request import Api, Usage
from tenancy.objective import DEFAULT_TIER

USAGE_SCHEMA = 2
"""Version of the usage record; version 1 had no `schema`."""

REQUEST_EVENT = "request_completed"
"""Event code of the request log's lines."""

CLIENT_GONE_STATUS = 499
"""No standard status exists for a client that left; nginx's number is the one that operators know."""


class Frontend(Struct, frozen=True, gc=False):
    """The front end by which a request came, and what it shows us of the response where there are several modes."""

    name: str
    mode: str | None = None


HTTP = Frontend("http")


class Receipt(Struct, gc=False):
    """The part of a record that is kept and shown: sizes, seconds and names, nothing from which a prompt could be read.

    Times are of the loop's clock but for `at_s`, which is Unix time.
    """

    id: str = ""
    at_s: float = 0.0
    """When it ended."""
    tenant: str | None = None
    api: Api = Api.CHAT
    model: str = ""
    stream: bool = False
    requested_model: str | None = None
    """The model as the client named it: an alias, a cascade, or the model before a downgrade; None where unread."""
    path: str = ""
    """Path of the endpoint."""
    client_request_id: str | None = None
    """The client's own id of the request (`x-request-id`)."""
    session: str | None = None
    status: int = 0
    reason: Reason | None = None
    """Why it was rejected; None where it was not."""
    error: str = ""
    """What went wrong, as text; empty where nothing did."""
    finish_reason: str | None = None
    usage: Usage | None = None
    prompt_bytes: int = 0
    ttft_s: float | None = None
    """From the request's arrival to its first token, waiting and retries included."""
    duration_s: float = 0.0
    attempts: tuple[AttemptReceipt, ...] = ()
    tier: str = DEFAULT_TIER.name
    key_id: str | None = None
    user: str | None = None
    queue_wait_s: float = 0.0
    """How long it waited in the admission queue."""
    slo_met: bool | None = None
    """Whether its objective was met; None without one, or where the client is the reason."""
    downgraded_from: str | None = None
    """The larger model that was asked for, where `model` answered in its place."""
    coalesced_with: str | None = None
    """Id of the identical request whose response it received as well: it took nothing itself."""
    frontend: str = HTTP.name
    extproc_mode: str | None = None
    """What Envoy shows us of the response, where it came by Envoy."""
    cascade: CascadeResult | None = None
    """What its cascade did; None where the model is not a cascade's name."""
    providers: tuple[str, ...] = ()
    """Providers outside the fleet that it was sent to, as `provider/region/model`; empty where it stayed within."""
    resumes: int = 0
    """How often another pod has resumed its stream."""
    resume_failure: ResumeBlocker | None = None
    """Why no pod did."""
    wasted_tokens: int = 0
    """Tokens of prompt and answer that were computed again for that."""
    predicted_ttft_s: float | None = None
    """Of a request that was rejected because its first token would have been late: the prediction, from arrival."""
    slo_ttft_s: float | None = None
    """The TTFT objective it was rejected by."""
    trace_id: str | None = None
    """Of its trace, in hex: the caller's or, with `tracing`, one that the gateway began; None without either."""

    @property
    def engine(self) -> str | None:
        """The engine that was tried last."""
        return self.attempts[-1].engine if self.attempts else None


class Outcome(Receipt, kw_only=True, gc=False):
    """All that is known of a request that has ended: its receipt, and what only logs and metrics need."""

    prompt: Prompt = EMPTY_PROMPT
    trace: RequestTrace | None = None
    """Its trace; None without `tracing` where no valid `traceparent` came with the request."""
    group: str | None = None
    decode_s: float | None = None
    """From its first token to its end; None also where its client read so slowly that its pod was paused."""
    is_constrained: bool = False
    """Whether a grammar may restrict its answer: it has tools or a schema."""
    trust_domain: str | None = None
    """Whose KV blocks it may share: what its `cache_salt` was made of; None where engines received no salt."""
    max_tokens: int | None = None
    """The most output tokens, of all its answers together; None where the client set no limit."""

    def receipt(self) -> Receipt:
        """Return what is kept of it."""
        return Receipt(*_receipt_values(self))

    # -- as logs write it ------------------------------------------------------------------------------------------

    unset: ClassVar[None] = None
    """Of fields that the writer of a list fills in."""
    usage_schema: ClassVar[int] = USAGE_SCHEMA
    event: ClassVar[str] = REQUEST_EVENT
    message: ClassVar[str] = EVENTS[REQUEST_EVENT]

    @property
    def timestamp(self) -> str:
        """RFC 3339, in UTC."""
        return format_timestamp(self.at_s)

    @property
    def level(self) -> str:
        """Log level: a 5xx is an error, what the client did is not."""
        return "error" if self.status >= 500 else "info"

    @property
    def span_id(self) -> str | None:
        """Id of the gateway's span of the request, in hex; None without `tracing`."""
        return None if self.trace is None else self.trace.span_id

    @property
    def parent_span_id(self) -> str | None:
        """Span id of the caller, in hex; None where it sent none, or its trace was not continued."""
        return None if self.trace is None else self.trace.parent_id

    @property
    def upstream(self) -> str | None:
        """Base URL of the pod that was tried last; None where none was."""
        return self.attempts[-1].engine.partition("#")[0] if self.attempts else None

    @property
    def dp_rank(self) -> int | None:
        """Data-parallel rank of the engine that was tried last; None where its pod is one engine."""
        rank = self.attempts[-1].engine.partition("#")[2] if self.attempts else ""
        return int(rank) if rank else None

    @property
    def role(self) -> str | None:
        """Role of the engine that was tried last; None where none was."""
        return self.attempts[-1].role if self.attempts else None

    @property
    def attempt_count(self) -> int:
        """How many engines were tried."""
        return len(self.attempts)

    @property
    def rounded_ttft_s(self) -> float | None:
        """Seconds, to the microsecond."""
        return None if self.ttft_s is None else _to_microseconds(self.ttft_s)

    @property
    def rounded_queue_wait_s(self) -> float:
        """Seconds, to the microsecond."""
        return _to_microseconds(self.queue_wait_s)

    @property
    def rounded_duration_s(self) -> float:
        """Seconds, to the microsecond."""
        return _to_microseconds(self.duration_s)

    @property
    def input_tokens(self) -> int | None:
        """Prompt tokens as reported by the engine; None where it reported none."""
        return None if self.usage is None else self.usage.prompt_tokens

    @property
    def cached_input_tokens(self) -> int | None:
        """Those of the prompt that the engine had cached; None where it did not report them."""
        return None if self.usage is None else self.usage.cached_tokens

    @property
    def output_tokens(self) -> int | None:
        """Output tokens as reported by the engine; None where it reported none."""
        return None if self.usage is None else self.usage.completion_tokens


def _to_microseconds(seconds: float) -> float:
    """Round: three times as quick as `round` with digits."""
    return int(seconds * 1e6 + 0.5) / 1e6


_receipt_values = attrgetter(*Receipt.__struct_fields__)


class RecordFields:
    """A list of a record's fields in the order in which they are written; `name=field` where the two differ.

    A field of the list that records do not have is `name=unset`, and is filled in by the writer.
    """

    __slots__ = ("_row", "_values", "names")

    def __init__(self, *fields: str) -> None:
        """Raises AttributeError for a field that records do not have."""
        pairs = [field.partition("=") for field in fields]
        attributes = [attribute or name for name, _, attribute in pairs]
        for attribute in attributes:
            getattr(Outcome, attribute)
        self._values = attrgetter(*attributes)
        self.names = tuple(name for name, _, _ in pairs)
        self._row = defstruct("Row", self.names, gc=False)

    def of(self, outcome: Outcome, **filled: object) -> Struct:
        """Return their values as a struct to be encoded."""
        row = self._row(*self._values(outcome))
        for name, value in filled.items():
            setattr(row, name, value)
        return row


OutcomeListener = Callable[[Outcome], None]
"""Observes the record of every request that has ended. Must not wait, nor change it."""
