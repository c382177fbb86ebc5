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

    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    pod: str | None = None
    status: int | None = None

    def matches(self, receipt: Receipt) -> bool:
        """Whether a receipt is one of them. A pod means any attempt on any of its engines."""
        return (
            self.model in (None, receipt.model)
            and self.tenant in (None, receipt.tenant)
            and self.session in (None, receipt.session)
            and self.status in (None, receipt.status)
            and (self.pod is None or any(attempt.engine.partition("#")[0] == self.pod for attempt in receipt.attempts))
        )


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
        receipt = self._written().get(receipt_id)
        return _written_out(receipt) if receipt else None

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
            )
            for attempt in receipt.attempts
        ),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
