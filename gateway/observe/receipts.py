"""Receipts: why each of the latest requests was routed as it was. A bounded ring; contains no prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.pipeline.record import Outcome, Receipt

MAX_RECEIPTS = 4096
"""Some minutes of a busy gateway, some megabytes."""

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

    def __init__(self, max_entries: int = MAX_RECEIPTS) -> None:
        self._max_entries = max_entries
        self._by_id: OrderedDict[str, Receipt] = OrderedDict()
        self._fresh: list[Outcome] = []

    def __len__(self) -> int:
        return len(self._written())

    def on_outcome(self, outcome: Outcome) -> None:
        """Keep a receipt, and forget the oldest when there are too many."""
        self._fresh.append(outcome)
        if len(self._fresh) == BATCH_SIZE:
            self._written()

    def find(self, receipt_id: str) -> Receipt | None:
        """Return the receipt of an id: the gateway's, else the latest of a client's own."""
        receipt = self._written().get(receipt_id)
        return _written_out(receipt) if receipt else next(self.latest(ReceiptFilter(id=receipt_id)), None)

    def latest(self, wanted: ReceiptFilter) -> Iterator[Receipt]:
        """Those that are wanted, newest first."""
        return (_written_out(receipt) for receipt in reversed(self._written().values()) if wanted.matches(receipt))

    def latest_brief(self, wanted: ReceiptFilter) -> Iterator[Receipt]:
        """Those that are wanted, newest first, each with its attempts but without their candidates."""
        for receipt in reversed(self._written().values()):
            if wanted.matches(receipt):
                yield replace(receipt, attempts=tuple(replace(attempt, candidates=()) for attempt in receipt.attempts))

    def _written(self) -> OrderedDict[str, Receipt]:
        """All of them, the fresh ones written first."""
        for outcome in self._fresh:
            self._by_id[outcome.id] = outcome.receipt()
        self._fresh.clear()
        while len(self._by_id) > self._max_entries:
            self._by_id.popitem(last=False)
        return self._by_id


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
            )
            for attempt in receipt.attempts
        ),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
