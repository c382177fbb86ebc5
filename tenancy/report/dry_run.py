"""A policy tried on requests that were: how many of each tenant would have been refused, and why.

Limits are those of `tenancy/limits/`, on the time of the requests. A record of a rejected request holds no tokens and
no duration: it is tried with those that its tenant's served requests to the same model have on average. What a rejected
client does next is not in any record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

import msgspec

from tenancy.limits.account_usage import AccountUsage, Reservation, UsageStore, reserve
from tenancy.limits.usage import FREE, LimitKind, RequestUsage, TokenPrices
from tenancy.policy import Policy
from tenancy.tenants import Account, Tenant

NO_TENANT, NO_MODEL = "unknown tenant", "model_not_allowed"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request that was. Times are Unix time."""

    at_s: float
    tenant: str | None
    model: str
    user: str | None = None
    group: str | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0
    was_rejected: bool = False
    """By the gateway, so that its tokens and its duration are not known."""
    is_whole: bool = False
    """Whether it is known to have been answered in one piece: `max_tokens` is then reserved for it at first."""
    prompt_bytes: int = 0
    max_tokens: int | None = None


@dataclass(slots=True)
class DryRunResult:
    """What became of one tenant's requests."""

    requests: int = 0
    were_rejected: int = 0
    """When they were made."""
    rejected: Counter[str] = field(default_factory=Counter)
    """By reason."""


def dry_run(
    policy: Policy, requests: Iterable[LoggedRequest], rates: Callable[[str], TokenPrices] = lambda _: FREE
) -> dict[str, DryRunResult]:
    """By tenant, in the order in which they came. `requests` in order of time; `rates` are those of a model."""
    fates: dict[str, DryRunResult] = {}
    books, running, turns = UsageStore(), list[tuple[float, int, Reservation, RequestUsage]](), count()
    for past in with_sizes(requests):
        while running and running[0][0] <= past.at_s:
            ended_s, _, reservation, used = heappop(running)
            reservation.settle(used, ended_s)
            reservation.close(ended_s)
        fate = fates.setdefault(past.tenant or "", DryRunResult())
        fate.requests += 1
        fate.were_rejected += past.was_rejected
        tenant = policy.tenants.get(past.tenant or "")
        model = tenant.aliases.get(past.model, past.model) if tenant is not None else past.model
        if tenant is None or not tenant.may_use(model):
            fate.rejected[NO_TENANT if tenant is None else NO_MODEL] += 1
            continue
        accounts, used = books.of(_accounts(tenant, past), past.at_s), _use(past, rates(model))
        found = reserve(accounts, _expected(past, used, accounts), past.at_s)
        if isinstance(found, tuple):
            fate.rejected[" and ".join(sorted({lack.kind.value for lack in found}))] += 1
        else:
            heappush(running, (past.at_s + past.duration_s, next(turns), found, used))
    return fates


def with_sizes(requests: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    """The same, where rejected requests have the tokens and the duration that they can be expected to have had."""
    requests = list(requests)
    means: dict[tuple[str | None, str | None], _Mean] = {}
    for past in requests:
        if not past.was_rejected:
            for key in ((past.tenant, past.model), (None, past.model), (None, None)):
                means.setdefault(key, _Mean()).add(past)
    found = []
    for past in requests:
        keys = ((past.tenant, past.model), (None, past.model), (None, None))
        mean = next((means[key] for key in keys if key in means), _Mean())
        found.append(mean.sized(past) if past.was_rejected else past)
    return found


USUAL_BYTES_PER_TOKEN = 4.0


@dataclass(slots=True)
class _Mean:
    """Sums over requests that were served."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    duration_s: float = 0.0
    counted_tokens: int = 0
    """Input of those whose bytes are known."""
    counted_bytes: int = 0

    def add(self, past: LoggedRequest) -> None:
        self.requests += 1
        self.input_tokens += past.input_tokens
        self.cached_tokens += past.cached_tokens
        self.output_tokens += past.output_tokens
        self.duration_s += past.duration_s
        if past.prompt_bytes and past.input_tokens:
            self.counted_tokens += past.input_tokens
            self.counted_bytes += past.prompt_bytes

    def sized(self, past: LoggedRequest) -> LoggedRequest:
        """A rejected request as it would have been."""
        served = max(self.requests, 1)
        tokens = self.input_tokens / served
        if past.prompt_bytes:
            each = self.counted_bytes / self.counted_tokens if self.counted_tokens else USUAL_BYTES_PER_TOKEN
            tokens = past.prompt_bytes / each
        cached = tokens * self.cached_tokens / self.input_tokens if self.input_tokens else 0.0
        output = self.output_tokens / served if self.requests else past.max_tokens or 0
        return replace(
            past,
            input_tokens=round(tokens),
            cached_tokens=round(cached),
            output_tokens=round(output if past.max_tokens is None else min(output, past.max_tokens)),
            duration_s=self.duration_s / served,
        )


def _expected(past: LoggedRequest, used: RequestUsage, books: Sequence[AccountUsage]) -> RequestUsage:
    """What is reserved at first: of an answer in one piece all that it may take, but at most half of a limit."""
    if not past.is_whole or past.max_tokens is None:
        return used
    limits = [meter.limit / 2 for book in books for meter in book.limit_usages.values() if meter.kind in _OF_ANSWERS]
    return msgspec.structs.replace(used, output_tokens=max(used.output_tokens, int(min([past.max_tokens, *limits]))))


_OF_ANSWERS = frozenset({LimitKind.TOKENS, LimitKind.OUTPUT})


def _accounts(tenant: Tenant, past: LoggedRequest) -> tuple[Account, ...]:
    return tenant.caller(group=past.group, user=past.user).accounts


def _use(past: LoggedRequest, rates: TokenPrices) -> RequestUsage:
    return RequestUsage(
        input_tokens=past.input_tokens,
        cached_tokens=past.cached_tokens,
        output_tokens=past.output_tokens,
        rates=rates,
    )
