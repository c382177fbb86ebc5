"""Receipts: why each of the latest requests was routed as it was. A bounded ring; contains no prompt.

Each is kept as a MessagePack array of its fields, a third of what its objects would take, and decoded when it is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from msgspec import UNSET, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import astuple, fields, replace

from gateway.pipeline.record import Outcome, Receipt
from routing.decision.placement import AttemptReceipt

MAX_RECEIPTS = 4096
"""Some minutes of a busy gateway."""

UNENCODED_BYTES = 4096
"""What a receipt that cannot be encoded counts as."""

MAX_BYTES = 16 << 20
"""Of all encoded receipts: a usual one takes less than a kilobyte, one of many attempts among many engines more."""

BATCH_SIZE = 64
"""Receipts made in one go, or when somebody looks: one by one, each between two requests, they take twice as long."""


@dataclass(frozen=True, slots=True)
class ReceiptFilter:
    """Which receipts to look for; None means any."""

    id: str | None = None
    """The gateway's id, or the client's own."""
    model: str | None = None
    """The model that was sent upstream, as the client named it, or any model of its cascade."""
    tenant: str | None = None
    session: str | None = None
    pod: str | None = None
    """URL of any pod that was tried, also for the prefill of a pair."""
    status: int | None = None
    reason: str | None = None
    since_s: float | None = None
    """Unix time; receipts of requests that ended before are left out."""
    until_s: float | None = None

    @property
    def texts(self) -> list[bytes]:
        """What the encoded form of every matching receipt contains."""
        named = (self.id, self.model, self.tenant, self.session, self.pod, self.reason)
        return [text.encode(errors="surrogatepass") for text in named if text is not None]

    def matches(self, receipt: Receipt) -> bool:
        """Whether a receipt is one of them."""
        return (
            self.id in (None, receipt.id, receipt.client_request_id)
            and self.tenant in (None, receipt.tenant)
            and self.session in (None, receipt.session)
            and self.status in (None, receipt.status)
            and self.reason in (None, receipt.reason)
            and (self.since_s is None or receipt.at_s >= self.since_s)
            and (self.until_s is None or receipt.at_s <= self.until_s)
            and (self.model is None or self.model in _models_of(receipt))
            and (self.pod is None or self.pod in _pods_of(receipt))
        )


def _models_of(receipt: Receipt) -> Iterator[str | None]:
    """Yield every name by which a request's model is known."""
    yield from (receipt.model, receipt.requested_model, receipt.downgraded_from)
    if receipt.cascade is not None:
        yield receipt.cascade.cascade
        yield from (step.model for step in receipt.cascade.steps)


def _pods_of(receipt: Receipt) -> Iterator[str]:
    """Yield the URL of every pod that was tried."""
    for attempt in receipt.attempts:
        yield attempt.engine.partition("#")[0]
        if attempt.prefill_engine is not None:
            yield attempt.prefill_engine.partition("#")[0]


class ReceiptStore:
    """The last receipts by id."""

    def __init__(self, max_entries: int = MAX_RECEIPTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._by_id: OrderedDict[str, bytes | Receipt] = OrderedDict()
        self._bytes = 0
        self._fresh: list[Outcome] = []

    def __len__(self) -> int:
        return len(self._written())

    @property
    def encoded_bytes(self) -> int:
        """Bytes of all receipts as they are kept."""
        self._written()
        return self._bytes

    def on_outcome(self, outcome: Outcome) -> None:
        """Keep a receipt, and forget the oldest when there are too many."""
        self._fresh.append(outcome)
        if len(self._fresh) >= BATCH_SIZE:
            self._written()

    def find(self, receipt_id: str) -> Receipt | None:
        """Return the receipt of an id: the gateway's, else the latest of a client's own."""
        kept = self._written().get(receipt_id)
        return _written_out(_decoded(kept)) if kept else next(self.latest(ReceiptFilter(id=receipt_id)), None)

    def latest(self, wanted: ReceiptFilter) -> Iterator[Receipt]:
        """Those that are wanted, newest first."""
        return map(_written_out, self._matching(wanted))

    def latest_brief(self, wanted: ReceiptFilter) -> Iterator[Receipt]:
        """Those that are wanted, newest first, each with its attempts but without their candidates."""
        for receipt in self._matching(wanted):
            yield replace(receipt, attempts=tuple(replace(attempt, candidates=()) for attempt in receipt.attempts))

    def _matching(self, wanted: ReceiptFilter) -> Iterator[Receipt]:
        texts = wanted.texts
        for kept in reversed(self._written().values()):
            # Decoding all of them would hold up requests for ten milliseconds.
            if isinstance(kept, Receipt) or all(text in kept for text in texts):
                receipt = _decoded(kept)
                if wanted.matches(receipt):
                    yield receipt

    def _written(self) -> OrderedDict[str, bytes | Receipt]:
        """All of them, the fresh ones written first."""
        by_id, fresh = self._by_id, self._fresh
        self._fresh = []
        for outcome in fresh:
            kept = _encoded(outcome)
            self._bytes += _size(kept) - _size(by_id.get(outcome.id, b""))
            by_id[outcome.id] = kept
        while len(by_id) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= _size(by_id.popitem(last=False)[1])
        return by_id


def _types_of(struct: type[Struct], **changed: Any) -> Any:
    """Return the type of a tuple of a struct's fields."""
    types = [changed.get(field.name, field.type) for field in fields(struct)]
    return tuple.__class_getitem__(tuple(types))


ATTEMPTS_AT = Receipt.__struct_fields__.index("attempts")

_ENCODER = Encoder()
_DECODER: Decoder[Any] = Decoder(_types_of(Receipt, attempts=list.__class_getitem__(_types_of(AttemptReceipt))))
_fields_of = attrgetter(*Receipt.__struct_fields__)


def _encoded(outcome: Outcome) -> bytes | Receipt:
    values = [*_fields_of(outcome)]
    values[ATTEMPTS_AT] = [astuple(attempt) for attempt in outcome.attempts]
    try:
        return _ENCODER.encode(values)
    except (UnicodeEncodeError, OverflowError, TypeError):  # A lone surrogate, or a pod's count beyond 64 bits.
        return outcome.receipt()


def _decoded(kept: bytes | Receipt) -> Receipt:
    if isinstance(kept, Receipt):
        return kept
    values = [*_DECODER.decode(kept)]
    values[ATTEMPTS_AT] = tuple(AttemptReceipt(*attempt) for attempt in values[ATTEMPTS_AT])
    return Receipt(*values)


def _size(kept: bytes | Receipt) -> int:
    return len(kept) if isinstance(kept, bytes) else UNENCODED_BYTES


def _written_out(receipt: Receipt) -> Receipt:
    """With its candidates and its times as they are read: few receipts are ever looked at."""
    return replace(
        receipt,
        at_s=round(receipt.at_s, 3),
        ttft_s=_rounded(receipt.ttft_s),
        duration_s=round(receipt.duration_s, 6),
        queue_wait_s=round(receipt.queue_wait_s, 6),
        predicted_ttft_s=_rounded(receipt.predicted_ttft_s),
        slo_ttft_s=_rounded(receipt.slo_ttft_s),
        attempts=tuple(
            replace(
                attempt,
                candidates=tuple(attempt.candidates),
                predicted_ttft_s=round(attempt.predicted_ttft_s, 6),
                actual_ttft_s=_rounded(attempt.actual_ttft_s),
                start_s=round(attempt.start_s, 6),
                duration_s=round(attempt.duration_s, 6),
                canary=attempt.canary or UNSET,
            )
            for attempt in receipt.attempts
        ),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
