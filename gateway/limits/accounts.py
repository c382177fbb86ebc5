"""Enforces the quotas of tenants and users: reserves before a request is placed, settles when it has ended.

`QuotaEnforcer.reserve` charges every account of the caller with the expected usage, or raises `QuotaExceeded`. It
returns a meter, which counts the stream, extends the reservation in steps and ends the stream where a limit has no room
left. Callers without accounts never come here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from sys import maxsize

from gateway.config.models import ModelEntry
from gateway.limits.estimate import UsageEstimator
from gateway.limits.lease_keeper import QuotaLeaseClient
from gateway.limits.rate_limit_response import REASONS, QuotaExceeded, RateLimitHeaders, rate_limit_headers
from routing.cost import RunningRatio
from routing.decision.router import Router
from routing.rejection import Reason
from routing.request import Api, Request, Usage
from tenancy.forecast import OutputLengthForecast
from tenancy.limits.account_usage import AccountUsage, LimitExceeded, Reservation, UsageStore, reserve
from tenancy.limits.usage import NO_USAGE, OUTPUT_KINDS, LimitKind, RequestUsage, TokenPrices
from tenancy.tenants import Account, Caller, Quota, Tenant, quota_of, renewed

WAIT_S = 1.0
"""How long a request waits for a larger lease: a millisecond in general, at most until the coordinator times out."""

MAX_LEASE_REQUESTS = 200
"""Per request."""

RATIO_WINDOW = 200.0
"""Observations after which older ones of tokens per event are decayed."""

MAX_REMEMBERED = 4_096
"""Pairs of tenant and model whose tokens per event are kept."""

TOP_UP_STEPS = (64, 8, 1)
"""Tokens by which a stream extends its reservation: the largest step that fits."""

TOP_UP_AHEAD_TOKENS = 32
"""Tokens before the end of the reservation at which it is first extended: a lease may have to be requested."""

CHECK_EVENTS = 64
"""Events between two checks whether the limits of a stream have changed."""


class QuotaEnforcer:
    """The accounts of one gateway process, and the reservations against them."""

    def __init__(
        self,
        expecting: UsageEstimator,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
        is_under_load: Callable[[], bool] = lambda: False,
    ) -> None:
        """`clock`: seconds since the epoch, never decreasing. `is_under_load`: whether requests wait for engines."""
        self.accounts = UsageStore(opened=self._open)
        self.leases: QuotaLeaseClient | None = None
        """Leases of limits that are shared with other gateways; None where they are not shared."""
        self.rejected: Counter[tuple[str, LimitKind]] = Counter()
        """Rejected requests by tenant and limit."""
        self.cut: Counter[tuple[str, LimitKind]] = Counter()
        """Streams that a limit has ended, by tenant and limit."""
        self.now_s = clock
        self.is_under_load = is_under_load
        self.rates: Callable[[str], TokenPrices] = expecting.rates
        self._expecting = expecting
        self._draw = draw
        self._tenants: Mapping[str, Tenant] | None = None
        """Those of the policy in force; None before the first policy."""
        self._per_event: OrderedDict[tuple[str | None, str], RunningRatio] = OrderedDict()
        """Tokens per event by tenant and model. Under tenant None: by model alone, for tenants without observations."""
        self._tasks: set[asyncio.Task[bool]] = set()

    def apply_policy(self, tenants: Mapping[str, Tenant]) -> None:
        """Apply the quotas of a policy to all accounts, existing and future.

        This is the only place that gives quotas to accounts. Streams under way apply them at their next check, and
        callers identified under another policy are held to this one.
        """
        self._tenants = tenants

        def quota_at(path: str) -> Quota | None:
            return quota_of(tenants, path)

        self.accounts.apply_quotas(quota_at, self.now_s())

    async def reserve(self, request: Request, caller: Caller) -> RequestMeter:
        """Reserve the expected usage of a request in all accounts of its caller. Raises `QuotaExceeded`."""
        if self._tenants is not None and self._tenants.get(caller.tenant.name or "") is not caller.tenant:
            caller = renewed(self._tenants, caller)
        now_s = self.now_s()
        accounts = self.accounts.of(caller.accounts, now_s)
        result = self._try(request, caller, accounts, now_s)
        if not isinstance(result, Reservation) and self.leases is not None:
            retry = partial(self._try, request, caller, accounts)
            result = await self._retry_with_leases(self.leases, accounts, result, retry)
        if isinstance(result, Reservation):
            return RequestMeter(self, request, caller.tenant.name, result, self._max_tokens(request, result))
        headers = rate_limit_headers(accounts, self.now_s(), anthropic=request.api is Api.MESSAGES)
        rejection = QuotaExceeded(result, headers, self._draw())
        self.rejected[tenant_of_account(rejection.lack.path), rejection.lack.kind] += 1
        raise rejection

    def current(self, tenant: Tenant) -> Tenant | None:
        """Return a tenant as the current policy has it; None where the policy has it no more."""
        return tenant if self._tenants is None else self._tenants.get(tenant.name or "")

    async def reserve_on(self, account: Account, use: RequestUsage) -> Reservation | None:
        """Reserve a use on one account alone, beside what its request holds already. None where there is no room."""
        accounts = self.accounts.of((account,), self.now_s())

        def attempt(now_s: float) -> Reservation | tuple[LimitExceeded, ...]:
            return reserve(accounts, use, now_s)

        result = attempt(self.now_s())
        if not isinstance(result, Reservation) and self.leases is not None:
            result = await self._retry_with_leases(self.leases, accounts, result, attempt)
        if isinstance(result, Reservation):
            return result
        self.rejected[tenant_of_account(account.path), LimitKind.BUDGET] += 1
        return None

    def _max_tokens(self, request: Request, reservation: Reservation) -> int | None:
        """The `max_tokens` per answer that the limits of a request impose, for answers that cannot be cut midway.

        It is what is reserved plus what the limits could still grant now. None for streams that are metered, and where
        it is no less than the client asks for or than any engine can generate.
        """
        if (request.stream and not request.holds_back) or not request.api.generates:
            return None
        wanted = request.max_tokens
        if wanted is not None and reservation.held.output_tokens >= wanted * request.sequences:
            return None
        held, under_load, is_cut_off = reservation.held, self.is_under_load(), self._is_partitioned
        beyond = inf
        for account in reservation.accounts:
            for kind, meter in account.limit_usages.items():
                if kind not in OUTPUT_KINDS or not account.binds(kind, under_load=under_load):
                    continue
                left = max(0.0, meter.cap - meter.counter.used) if is_cut_off else meter.remaining
                if kind is LimitKind.BUDGET:
                    left = left / held.rates.output if held.rates.output else inf
                beyond = min(beyond, left)
        if beyond == inf:
            return None
        granted = max(1, int(held.output_tokens + beyond) // request.sequences)
        if wanted is not None:
            return granted if granted < wanted else None
        contexts = self._expecting.contexts(request.model, self.now_s())
        if contexts is None:
            return granted
        # Engines reject a max_tokens beyond their context, and need none that no engine could reach.
        shortest, largest_context = contexts
        return None if granted >= largest_context else min(granted, shortest)

    @property
    def _is_partitioned(self) -> bool:
        return self.leases is not None and self.leases.is_partitioned

    def _try(
        self, request: Request, caller: Caller, accounts: Sequence[AccountUsage], now_s: float
    ) -> Reservation | tuple[LimitExceeded, ...]:
        expected = self._expecting(request, caller, accounts)
        return reserve(accounts, expected, now_s, under_load=self.binds_all(accounts))

    async def _retry_with_leases(
        self,
        keeper: QuotaLeaseClient,
        accounts: Sequence[AccountUsage],
        lacks: tuple[LimitExceeded, ...],
        retry: Callable[[float], Reservation | tuple[LimitExceeded, ...]],
    ) -> Reservation | tuple[LimitExceeded, ...]:
        """Request larger leases and try again, as long as the leases change."""
        result: Reservation | tuple[LimitExceeded, ...] = lacks
        try:
            async with asyncio.timeout(WAIT_S):
                for _ in range(MAX_LEASE_REQUESTS):
                    if isinstance(result, Reservation) or any(lack.amount > lack.limit for lack in result):
                        break
                    if not await keeper.request_more(accounts, result):
                        break
                    result = retry(self.now_s())
        except TimeoutError:
            # The coordinator is late, or this process was suspended: it is not known that the limit is exhausted.
            keeper.mark_partitioned()
            result = retry(self.now_s())
        return result

    def _open(self, account: AccountUsage) -> None:
        """Cap a new account of shared limits until its first lease."""
        if self.leases is not None:
            self.leases.cap_until_leased(account)

    def binds_all(self, accounts: Sequence[AccountUsage]) -> bool:
        """Return whether all limits of these accounts bind now, including those that bind only under load."""
        for account in accounts:
            if not account.always_binds:
                return self.is_under_load()
        return True

    # -- used by meters ------------------------------------------------------------------------------------------------

    def tokens_per_event(self, tenant: str | None, model: str) -> float:
        """Output tokens per stream event: above 1 with speculative decoding, or where engines batch their output."""
        known = self._per_event.get((tenant, model)) or self._per_event.get((None, model))
        return known.value if known is not None else 1.0

    def request_more(self, reservation: Reservation, lacks: tuple[LimitExceeded, ...]) -> None:
        """Request larger leases in the background: a stream will soon need them."""
        if self.leases is not None:
            task = asyncio.get_running_loop().create_task(self.leases.request_more(reservation.accounts, lacks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def count_cut(self, lack: LimitExceeded) -> None:
        """Count a stream that a limit has ended."""
        self.cut[tenant_of_account(lack.path), lack.kind] += 1

    def learn(self, request: Request, tenant: str | None, usage: Usage, events: int) -> None:
        """Learn token counts from the usage that an engine reports. `events`: those the client was sent."""
        self._expecting.learn(request, tenant, usage)
        # Where tokens are held back, the number of events says nothing about tokens.
        if events and usage.completion_tokens and not request.holds_back:
            per_event, weight = usage.completion_tokens / events, min(1.0, events / 50)
            for key in dict.fromkeys(((tenant, request.model), (None, request.model))):
                known = self._per_event.get(key)
                if known is None:
                    if len(self._per_event) >= MAX_REMEMBERED:
                        self._per_event.popitem(last=False)
                    known = self._per_event[key] = RunningRatio(RATIO_WINDOW, total_weight=1.0)
                known.observe(per_event, weight)


def tenant_of_account(path: str) -> str:
    """The tenant of an account path: `search` of `search/user/ann`."""
    return path.partition("/")[0]


class RequestMeter:
    """Meters one request against its reservation, from the first token to the last.

    In whatever order its methods are called, nothing is charged twice and nothing stays reserved.
    """

    __slots__ = (
        *("_check_at", "_counts", "_events", "_learns_events", "_max_output", "_per_event", "_quotas", "_reservation"),
        *("_settled", "_tenant", "_top_up_at", "_version", "cut_reason", "is_watched", "max_tokens", "request"),
    )

    def __init__(
        self,
        quotas: QuotaEnforcer,
        request: Request,
        tenant: str | None,
        reservation: Reservation,
        max_tokens: int | None = None,
    ) -> None:
        self._quotas = quotas
        self._reservation = reservation
        self._events = 0
        self._learns_events = True
        self._settled = False
        self._tenant = tenant
        self.request = request
        self.max_tokens = max_tokens
        """`max_tokens` to send to the engine, where the limits allow less than the client; else None."""
        self.cut_reason: Reason | None = None
        """Why a limit ends the stream; None while none does."""
        self.is_watched = request.stream
        """Whether its events are to be counted: a policy reload may add a limit on output while it runs."""
        self._per_event = quotas.tokens_per_event(tenant, request.model) if self.is_watched else 1.0
        self._max_output = maxsize if request.max_tokens is None else request.max_tokens * request.sequences
        self._version, self._counts = 0, False
        self._top_up_at = self._check_at = maxsize
        if self.is_watched:
            self._read_limits()

    def __repr__(self) -> str:
        return f"<RequestMeter of {self.request.id}, {self._events} events, {self._reservation}>"

    def headers(self) -> RateLimitHeaders:
        """The rate-limit headers of the response."""
        anthropic = self.request.api is Api.MESSAGES
        return rate_limit_headers(self._reservation.accounts, self._quotas.now_s(), anthropic=anthropic)

    def count_events(self, events: int) -> int:
        """Count events sent to the client. Returns after how many more to call again, at least 1; 0 where the stream
        must end (`cut_reason`).
        """
        self._events = sent = self._events + events
        if events and sent >= self._check_at and (reason := self._check()) is not None:
            self.cut_reason = reason
            return 0
        return max(1, self._check_at - sent)

    @property
    def tokens(self) -> int:
        """Output tokens, estimated from events."""
        return round(self._events * self._per_event)

    @property
    def held_tokens(self) -> int:
        """Output tokens reserved: those sent and those that may still be sent."""
        return self._reservation.held.output_tokens

    def usage(self) -> Usage:
        """The usage estimated so far, where the engine reports none."""
        return Usage(self._reservation.held.input_tokens, self.tokens)

    def ignore_events(self) -> None:
        """Learn nothing from the number of events: while a client does not read, engines put many tokens into one."""
        self._learns_events = False

    def settle(self, usage: Usage | None, model: str) -> None:
        """Settle by the usage that the engine reports at the end of its answer. None: nothing is settled yet."""
        if usage is None:
            return
        self._settled = True
        used = RequestUsage(
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            rates=self._quotas.rates(model),
        )
        reservation, quotas = self._reservation, self._quotas
        reservation.settle(used, quotas.now_s(), under_load=quotas.binds_all(reservation.accounts))
        quotas.learn(self.request, self._tenant, usage, self._events if self._learns_events else 0)

    def close(self, *, was_carried: bool, was_served: bool) -> None:
        """Release the reservation; actual usage stays charged.

        The request counts if an attempt was sent (`was_carried`), its tokens if a pod answered (`was_served`).
        """
        reservation, now_s = self._reservation, self._quotas.now_s()
        if not was_carried:
            reservation.settle(NO_USAGE, now_s)
        elif not self._settled:
            held = reservation.held
            output = self.tokens if self.request.stream else held.output_tokens
            used = (
                RequestUsage(1, held.input_tokens, held.cached_tokens, output, held.rates)
                if was_served
                else RequestUsage(1)
            )
            reservation.settle(used, now_s, under_load=self._quotas.is_under_load())
        reservation.close(now_s)

    def _check(self) -> Reason | None:
        reservation = self._reservation
        if reservation.version != self._version:
            # What was reserved under other limits and is not used yet has to be reserved again.
            reservation.shrink(self.tokens, self._quotas.now_s())
            self._read_limits()
        while self._events >= self._top_up_at:
            lacks = self._top_up()
            if lacks:
                return self._end_or_go_on(lacks)
            self._top_up_at = self._next_top_up()
        self._check_at = min(self._top_up_at, self._events + CHECK_EVENTS)
        return None

    def _end_or_go_on(self, lacks: tuple[LimitExceeded, ...]) -> Reason | None:
        """No limit grants more: the stream ends at the end of its reservation."""
        held = self._reservation.held.output_tokens
        if self.tokens >= held:
            self._quotas.count_cut(lacks[0])
            return REASONS[lacks[0].kind]
        self._top_up_at = max(self._events + 1, int(held / self._per_event))
        self._check_at = min(self._top_up_at, self._events + CHECK_EVENTS)
        self._quotas.request_more(self._reservation, lacks)
        return None

    def _read_limits(self) -> None:
        """Take over the limits that are in force now."""
        self._version, self._counts = self._reservation.version, False
        for account in self._reservation.accounts:
            if not OUTPUT_KINDS.isdisjoint(account.limit_usages):
                self._counts = True
        self._top_up_at = self._next_top_up()
        self._check_at = min(self._top_up_at, self._events + CHECK_EVENTS)

    def _top_up(self) -> tuple[LimitExceeded, ...]:
        """Extend the reservation by the largest step that fits. Returns the limits without room where none does."""
        reservation, quotas = self._reservation, self._quotas
        lacks: tuple[LimitExceeded, ...] = ()
        for step in TOP_UP_STEPS:
            more = min(step, self._max_output - reservation.held.output_tokens)
            lacks = reservation.top_up(more, quotas.now_s(), under_load=quotas.is_under_load())
            if not lacks:
                break
        return lacks

    def _next_top_up(self) -> int:
        """The event at which to extend the reservation; never, where it covers all that the client allows."""
        held = self._reservation.held.output_tokens
        if not self._counts or held >= self._max_output:
            return maxsize
        return max(1, int((held - TOP_UP_AHEAD_TOKENS) / self._per_event))


def make_quota_enforcer(
    router: Router,
    prices: Mapping[str, ModelEntry],
    is_under_load: Callable[[], bool],
    *,
    clock: Callable[[], float],
    draw: Callable[[], float],
) -> QuotaEnforcer:
    """The quotas of one gateway. `clock` is the loop's; windows are aligned to the wall clock as it is now."""
    seconds_to_epoch = time.time() - clock()
    return QuotaEnforcer(
        UsageEstimator(router, OutputLengthForecast(shares=False), prices),
        clock=lambda: clock() + seconds_to_epoch,
        draw=draw,
        is_under_load=is_under_load,
    )
