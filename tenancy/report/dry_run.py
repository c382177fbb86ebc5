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
    is_unary: bool = False
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
    for request in with_sizes(requests):
        while running and running[0][0] <= request.at_s:
            ended_s, _, reservation, used = heappop(running)
            reservation.settle(used, ended_s)
            reservation.close(ended_s)
        result = fates.setdefault(request.tenant or "", DryRunResult())
        result.requests += 1
        result.were_rejected += request.was_rejected
        tenant = policy.tenants.get(request.tenant or "")
        model = tenant.aliases.get(request.model, request.model) if tenant is not None else request.model
        if tenant is None or not tenant.may_use(model):
            result.rejected[NO_TENANT if tenant is None else NO_MODEL] += 1
            continue
        accounts, used = books.of(_accounts(tenant, request), request.at_s), _use(request, rates(model))
        found = reserve(accounts, _expected(request, used, accounts), request.at_s)
        if isinstance(found, tuple):
            result.rejected[" and ".join(sorted({lack.kind.value for lack in found}))] += 1
        else:
            heappush(running, (request.at_s + request.duration_s, next(turns), found, used))
    return fates


def with_sizes(requests: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    """The same, where rejected requests have the tokens and the duration that they can be expected to have had."""
    requests = list(requests)
    means: dict[tuple[str | None, str | None], _Mean] = {}
    for request in requests:
        if not request.was_rejected:
            for key in ((request.tenant, request.model), (None, request.model), (None, None)):
                means.setdefault(key, _Mean()).add(request)
    found = []
    for request in requests:
        keys = ((request.tenant, request.model), (None, request.model), (None, None))
        mean = next((means[key] for key in keys if key in means), _Mean())
        found.append(mean.sized(request) if request.was_rejected else request)
    return found


DEFAULT_BYTES_PER_TOKEN = 4.0


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

    def add(self, request: LoggedRequest) -> None:
        self.requests += 1
        self.input_tokens += request.input_tokens
        self.cached_tokens += request.cached_tokens
        self.output_tokens += request.output_tokens
        self.duration_s += request.duration_s
        if request.prompt_bytes and request.input_tokens:
            self.counted_tokens += request.input_tokens
            self.counted_bytes += request.prompt_bytes

    def sized(self, request: LoggedRequest) -> LoggedRequest:
        """A rejected request as it would have been."""
        served = max(self.requests, 1)
        tokens = self.input_tokens / served
        if request.prompt_bytes:
            each = self.counted_bytes / self.counted_tokens if self.counted_tokens else DEFAULT_BYTES_PER_TOKEN
            tokens = request.prompt_bytes / each
        cached = tokens * self.cached_tokens / self.input_tokens if self.input_tokens else 0.0
        output = self.output_tokens / served if self.requests else request.max_tokens or 0
        return replace(
            request,
            input_tokens=round(tokens),
            cached_tokens=round(cached),
            output_tokens=round(output if request.max_tokens is None else min(output, request.max_tokens)),
            duration_s=self.duration_s / served,
        )


def _expected(request: LoggedRequest, used: RequestUsage, books: Sequence[AccountUsage]) -> RequestUsage:
    """What is reserved at first: of an answer in one piece all that it may take, but at most half of a limit."""
    if not request.is_unary or request.max_tokens is None:
        return used
    limits = [meter.limit / 2 for book in books for meter in book.limit_usages.values() if meter.kind in _OF_ANSWERS]
    return msgspec.structs.replace(used, output_tokens=max(used.output_tokens, int(min([request.max_tokens, *limits]))))


_OF_ANSWERS = frozenset({LimitKind.TOKENS, LimitKind.OUTPUT})


def _accounts(tenant: Tenant, request: LoggedRequest) -> tuple[Account, ...]:
    return tenant.caller(group=request.group, user=request.user).accounts


def _use(request: LoggedRequest, rates: TokenPrices) -> RequestUsage:
    return RequestUsage(
        input_tokens=request.input_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=request.output_tokens,
        rates=rates,
    )
