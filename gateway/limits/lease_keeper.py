"""Holds this gateway's leases of shared limits: requests them, renews them, releases them, and works without them.

A request waits only where its account runs short; all requests that wait for one account share one lease request.
Accounts in use are reported once a second. While the coordinator is unreachable, each gateway is capped by
`partitioned_cap`. After the coordinator has come back or has lost its state, no gateway leases more than an even share
until as many gateways as before have reported what they hold.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from gateway.config.settings import Settings
from gateway.limits.coordinator import CoordinatorUnavailable, LocalQuotaCoordinator, QuotaCoordinator
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import restarted
from gateway.runtime.redis_location import parse_redis_url
from tenancy.limits.account_usage import AccountUsage, LimitExceeded, LimitNeeds, LimitUsage
from tenancy.limits.leases import LeaseRequest
from tenancy.limits.shared_limits import (
    DEAD_S,
    GRACE_S,
    allow_first_request,
    apply_grants,
    final_requests,
    float_amount,
    lease_requests,
    partitioned_cap,
)
from tenancy.limits.usage import LimitKind

RENEW_INTERVAL_S = 1.0

FIRST_RENEW_INTERVAL_S = 0.05
"""Until the first answer of the coordinator."""

IDLE_REPORT_INTERVAL_S = 4.0
"""Interval of reports for an account that was not used since the last one, well within `DEAD_S`."""

DENIED_PAUSE_S = 0.1
"""Pause after a lease request that gained nothing: callers over their limit must not load the coordinator."""

CONCURRENCY = 8
"""Lease requests of one renewal in flight."""

RELEASE_S = 0.5
"""Time for releasing all leases at the end."""

MEMBERS_ACCOUNT = ""
"""The account by which gateways count each other: each holds one unit of it."""

MEMBERSHIP = (LeaseRequest("here", 1e9, held=1.0, wanted=1.0, minimum=0.0, keeps_s=DEAD_S),)


class QuotaLeaseClient:
    """The leases of one gateway process."""

    def __init__(
        self,
        coordinator: QuotaCoordinator,
        *,
        holder: str,
        processes: int,
        accounts: Iterable[AccountUsage],
        clock: Callable[[], float],
        say: EventLog,
    ) -> None:
        self.replicas = processes
        """Gateways that share the limits, as last known."""
        self.is_partitioned = True
        """Whether the coordinator is unreachable."""
        self.lease_requests = 0
        """Lease requests sent."""
        self._coordinator = coordinator
        self._holder = holder
        self._accounts = accounts
        self._clock = clock
        self._say = say
        self._answered_s = clock()
        self._has_answered = False
        self._recovers_until_s = 0.0
        self._reported_s: dict[str, float] = {}
        self._denied_s: dict[str, float] = {}
        self._pending: dict[str, asyncio.Task[bool]] = {}

    async def run(self) -> None:
        """Renew leases until cancelled, then release them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._coordinator.run(), name="quota coordinator")
            try:
                await self._keep_time()
            finally:
                await self._release_all()

    @restarted("limits")
    async def _keep_time(self) -> None:
        while True:
            await self._renew_leases()
            await asyncio.sleep(RENEW_INTERVAL_S if self._has_answered else FIRST_RENEW_INTERVAL_S)

    # -- requests of accounts ------------------------------------------------------------------------------------------

    def cap_until_leased(self, account: AccountUsage) -> None:
        """Cap an account that is new, or has new limits, until its first lease."""
        for meter in account.limit_usages.values():
            if meter.lease is None:
                meter.cap = partitioned_cap(meter, self.replicas, self._unanswered_s) if self.is_partitioned else 0.0

    async def request_more(self, accounts: Iterable[AccountUsage], lacks: Iterable[LimitExceeded]) -> bool:
        """Request larger leases for accounts without room. Returns whether a reservation may succeed now."""
        needs: dict[str, dict[LimitKind, float]] = {}
        for lack in lacks:
            needs.setdefault(lack.path, {})[lack.kind] = lack.amount
        short = [account for account in accounts if account.path in needs]
        if self.is_partitioned:
            return all(allow_first_request(account, needs[account.path]) for account in short)
        if any(self._clock() - self._denied_s.get(account.path, 0.0) < DENIED_PAUSE_S for account in short):
            return False
        return all(await asyncio.gather(*(self._lease_once(account, needs[account.path]) for account in short)))

    async def _lease_once(self, account: AccountUsage, needs: LimitNeeds) -> bool:
        """Request a lease, or wait for the request in flight. Returns whether anything has changed."""
        task = self._pending.get(account.path)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._lease(account, needs), name=f"lease {account.path}")
            self._pending[account.path] = task
            task.add_done_callback(lambda _: self._pending.pop(account.path, None))
            return await asyncio.shield(task)
        await asyncio.shield(task)
        return True

    async def _lease(self, account: AccountUsage, needs: LimitNeeds) -> bool:
        """Returns whether the caps have grown, or the coordinator is unreachable."""
        return self.is_partitioned or await self._renew_lease(account, needs)

    async def _renew_lease(self, account: AccountUsage, needs: LimitNeeds) -> bool:
        now_s = self._clock()
        is_recovering = now_s < self._recovers_until_s
        asks = lease_requests(account, now_s, replicas=self.replicas, is_gathering=is_recovering, needs=needs)
        self.lease_requests += 1
        self._reported_s[account.path] = now_s
        try:
            grants = await self._coordinator.lease(account.path, self._holder, asks)
        except CoordinatorUnavailable:
            self.mark_partitioned()
            return True
        self._answered_s, self._has_answered = now_s, True
        caps = [meter.cap for meter in account.limit_usages.values()]
        was_lost = apply_grants(account, asks, grants)
        if self.is_partitioned:  # Another request has found the coordinator unreachable meanwhile.
            self._cap_partitioned(account)
            return True
        if was_lost and not is_recovering:
            self._recover("leases_lost")
        has_grown = any(meter.cap > cap for meter, cap in zip(account.limit_usages.values(), caps, strict=False))
        if needs and not has_grown:
            self._denied_s[account.path] = now_s
        return has_grown

    # -- keeping time --------------------------------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        now_s = self._clock()
        accounts = list(self._accounts)
        if self.is_partitioned and not await self._rejoin(accounts):
            self.mark_partitioned()
            return
        try:
            await self._count_replicas()
        except CoordinatorUnavailable:
            self.mark_partitioned()
            return
        await self._report([account for account in accounts if self._is_due(account, now_s)])
        if len(self._reported_s) > 2 * len(accounts):
            self._reported_s = {
                account.path: self._reported_s[account.path] for account in accounts if account.path in self._reported_s
            }
        self._denied_s.clear()

    def _is_due(self, account: AccountUsage, now_s: float) -> bool:
        if now_s - self._reported_s.get(account.path, 0.0) >= IDLE_REPORT_INTERVAL_S:
            return any(
                meter.lease is not None and (meter.lease.slice or meter.counter.used) for meter in _meters(account)
            )
        return any(meter.demand or meter.unmet or _has_surplus(meter, self.replicas) for meter in _meters(account))

    async def _rejoin(self, accounts: list[AccountUsage]) -> bool:
        """Reconnect: report all accounts first, then count the replicas. Returns whether the coordinator answers.

        In this order every replica that is counted has reported what it holds.
        """
        even = 1.0 / self.replicas
        keeps_leases = self._unanswered_s < GRACE_S
        caps = {meter: meter.cap for account in accounts for meter in _meters(account)}
        self._recovers_until_s = self._clock() + DEAD_S if self._has_answered else 0.0
        self.is_partitioned = False
        for meter in caps:
            held = meter.lease.slice if meter.lease is not None else 0.0
            meter.cap = min(meter.cap, held if keeps_leases or meter.kind is LimitKind.BUDGET else meter.limit * even)
        await self._report(accounts)
        if not self.is_partitioned:
            with suppress(CoordinatorUnavailable):
                await self._count_replicas()
                return True
        return False

    async def _report(self, accounts: list[AccountUsage]) -> None:
        waiting = iter(accounts)

        async def report() -> None:
            for account in waiting:
                if not self.is_partitioned:
                    await self._lease_once(account, {})

        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONCURRENCY, len(accounts))):
                group.create_task(report(), name="report accounts")

    async def _count_replicas(self) -> None:
        (members,) = await self._coordinator.lease(MEMBERS_ACCOUNT, self._holder, MEMBERSHIP)
        present = 1 + int(members.elsewhere)
        is_first = not self._has_answered
        self._answered_s, self._has_answered = (now_s := self._clock()), True
        if not members.was_known and not is_first and now_s >= self._recovers_until_s:
            self._recover("coordinator_emptied")
        elif present >= self.replicas or now_s >= self._recovers_until_s:
            self.replicas, self._recovers_until_s = present, 0.0

    def _recover(self, reason: str) -> None:
        """Lease no more than an even share until all replicas have reported again, or have expired."""
        self._recovers_until_s = self._clock() + DEAD_S
        self._reported_s.clear()
        self._say("info", "quota_recovery_started", reason=reason, replicas=self.replicas)

    # -- partitioned ---------------------------------------------------------------------------------------------------

    @property
    def _unanswered_s(self) -> float:
        """Seconds since the last answer, or since the start: others may have used the whole limit just before."""
        return self._clock() - self._answered_s

    def mark_partitioned(self) -> None:
        """Treat the coordinator as unreachable until it answers again, and cap all accounts accordingly."""
        self.is_partitioned = True
        for account in self._accounts:
            self._cap_partitioned(account)

    def _cap_partitioned(self, account: AccountUsage) -> None:
        """Cap an account while the coordinator is unreachable."""
        for meter in _meters(account):
            meter.cap = partitioned_cap(meter, self.replicas, self._unanswered_s)

    async def _release_all(self) -> None:
        """Release all leases: usage stays counted until its window ends, all else is free for others at once."""
        if self.is_partitioned:
            return
        with suppress(CoordinatorUnavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                for account in self._accounts:
                    stays, ends = final_requests(account, self._clock())
                    if stays:
                        await self._coordinator.lease(account.path, self._holder, stays)
                    if ends:
                        await self._coordinator.release(account.path, self._holder, ends)
                await self._coordinator.release(MEMBERS_ACCOUNT, self._holder, MEMBERSHIP)


def make_lease_client(
    settings: Settings,
    client: IndexProcessClient,
    accounts: Iterable[AccountUsage],
    *,
    clock: Callable[[], float],
    say: EventLog,
) -> QuotaLeaseClient | None:
    """Leases shared with all gateways by Redis, else with the workers of this host; None where there are no others."""
    coordinator: QuotaCoordinator
    if settings.redis is not None:
        from gateway.limits.redis_coordinator import RedisQuotaCoordinator  # noqa: PLC0415 - redis-py takes ten megabytes

        draw = random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
        coordinator = RedisQuotaCoordinator(parse_redis_url(settings.redis.value), say=say, draw=draw)
    elif settings.processes > 1:
        coordinator = LocalQuotaCoordinator(client)
    else:
        return None
    return QuotaLeaseClient(
        coordinator, holder=secrets.token_hex(8), processes=settings.processes, accounts=accounts, clock=clock, say=say
    )


def _has_surplus(meter: LimitUsage, replicas: int) -> bool:
    """Whether a lease exceeds its usage by so much that others should have the rest."""
    return meter.lease is not None and meter.cap - meter.counter.used >= float_amount(meter, replicas) / 2


def _meters(account: AccountUsage) -> tuple[LimitUsage, ...]:
    return tuple(account.limit_usages.values())
