"""Receipts: why each of the latest requests was routed as it was. A bounded ring; contains no prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from cascade.record import CascadeResult
from gateway.attempts.outcome import Outcome
from routing.decision.receipt import AttemptReceipt
from routing.request import Usage

MAX_RECEIPTS = 4096
"""Some minutes of a busy gateway, some megabytes."""

BATCH_SIZE = 64
"""Receipts made in one go, or when somebody looks: one by one, each between two requests, they take twice as long."""


class Receipt(msgspec.Struct, frozen=True):
    """What is kept of an outcome: sizes, seconds and names; nothing from which a prompt could be read.

    A struct, as one is made per request: a frozen dataclass of so many fields takes ten times as long.
    """

    id: str
    at_s: float
    tenant: str | None
    api: str
    model: str
    stream: bool
    session: str | None
    status: int
    reason: str | None
    detail: str
    finish_reason: str | None
    usage: Usage | None
    prompt_bytes: int
    ttft_s: float | None
    duration_s: float
    attempts: tuple[AttemptReceipt, ...]
    tier: str
    key_id: str | None
    user: str | None
    queued_s: float
    promise_met: bool | None
    downgraded_from: str | None
    shared: str | None
    """The request whose answer it was given as well."""
    shell: str = "http"
    mode: str | None = None
    """How much of the answer Envoy shows us, where it came by Envoy."""
    climbed: CascadeResult | None = None
    """Its way up a ladder: the rungs that were asked, what was judged and what was wasted."""
    resumed: int = 0
    """How often another pod has gone on with what a lost one had begun."""
    unresumed: str | None = None
    """Why nobody did."""
    wasted_tokens: int = 0
    """Of prompt and answer, that were computed again for that."""
    predicted_ttft_s: float | None = None
    """Of a request that was rejected because its first token would have been late: the prediction, from arrival."""
    promised_ttft_s: float | None = None
    """What its service level allowed."""

    @property
    def engine(self) -> str | None:
        """The engine that was tried last."""
        return self.attempts[-1].engine if self.attempts else None


def make_receipt(outcome: Outcome) -> Receipt:
    """The receipt of a request that has ended."""
    request = outcome.request
    return Receipt(
        id=request.id,
        at_s=outcome.at_s,
        tenant=outcome.tenant,
        api=request.api.value,
        model=request.model,
        stream=request.stream,
        session=request.session,
        status=outcome.status,
        reason=outcome.reason.value if outcome.reason else None,
        detail=outcome.detail,
        finish_reason=outcome.finish_reason,
        usage=outcome.usage,
        prompt_bytes=request.prompt.size,
        ttft_s=outcome.ttft_s,
        duration_s=outcome.duration_s,
        attempts=outcome.attempts,
        tier=outcome.tier,
        key_id=outcome.key_id,
        user=outcome.user,
        queued_s=outcome.queued_s,
        promise_met=outcome.promise_met,
        downgraded_from=request.downgraded_from,
        shared=outcome.shared,
        climbed=outcome.cascade,
        resumed=outcome.resumed,
        unresumed=outcome.unresumed,
        wasted_tokens=outcome.wasted_tokens,
        shell=outcome.shell.name,
        mode=outcome.shell.mode,
        predicted_ttft_s=outcome.predicted_ttft_s,
        promised_ttft_s=outcome.promised_ttft_s,
    )


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

    def __init__(self, most: int = MAX_RECEIPTS) -> None:
        self._most = most
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

    def _written(self) -> OrderedDict[str, Receipt]:
        """All of them, the fresh ones written first."""
        for outcome in self._fresh:
            self._by_id[outcome.request.id] = make_receipt(outcome)
        self._fresh.clear()
        while len(self._by_id) > self._most:
            self._by_id.popitem(last=False)
        return self._by_id


def _written_out(receipt: Receipt) -> Receipt:
    """With its candidates and its times as they are read: few receipts are ever looked at."""
    return replace(
        receipt,
        at_s=round(receipt.at_s, 3),
        ttft_s=_rounded(receipt.ttft_s),
        duration_s=round(receipt.duration_s, 6),
        queued_s=round(receipt.queued_s, 6),
        predicted_ttft_s=_rounded(receipt.predicted_ttft_s),
        promised_ttft_s=_rounded(receipt.promised_ttft_s),
        attempts=tuple(
            replace(
                attempt,
                candidates=tuple(attempt.candidates),
                predicted_ttft_s=round(attempt.predicted_ttft_s, 6),
                real_ttft_s=_rounded(attempt.real_ttft_s),
            )
            for attempt in receipt.attempts
        ),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
