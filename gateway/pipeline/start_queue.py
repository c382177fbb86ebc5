"""Requests that wait for the first pod of their model, which an autoscaler starts: by tier, each within its own wait.

The first of them signals the demand for a pod at once. A request whose tier waits for less than the start still takes
is rejected immediately, with the remaining time as Retry-After. When a pod is ready all of them are woken, the highest
tier first, and go through admission like others. Nothing here runs while every requested model has a pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.pipeline.request_context import RequestContext
from gateway.runtime.guard import PeriodicTimer, call_guarded
from routing.fleet import Fleet
from routing.rejection import Reason, RequestRejected
from tenancy.admission import MAX_WAITING, MAX_WAITING_BYTES
from tenancy.objective import LatencyObjective

LOOK_S = 0.05
"""Period of the look for a pod while requests are held."""

TENANT_SHARE = 0.5
"""Share of the room that one tenant may fill: a flood for one model would else have all others rejected."""

LOOP = "start queue"
"""The name under which exceptions of its callbacks are reported."""

MIN_RETRY_S = 1.0
"""Minimum Retry-After."""


class HeldRequest:
    """A request that waits for a pod."""

    __slots__ = ("context", "future", "objective", "since_s")

    def __init__(
        self, context: RequestContext, objective: LatencyObjective, since_s: float, future: asyncio.Future[None]
    ) -> None:
        self.context = context
        self.objective = objective
        self.since_s = since_s
        self.future = future


class StartQueue:
    """One per gateway process with supply decisions."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Callable[[], float],
        covers: Callable[[str], bool],
        remaining_s: Callable[[str], float],
        on_needed: Callable[[str], None],
        max_wait_s: float = 0.0,
    ) -> None:
        """`covers`: whether an autoscaler starts pods of a model. `remaining_s`: seconds until its first pod is
        expected. `on_needed` is called with the model of each request that finds no pod. `max_wait_s`: of any request;
        0: that of its tier.
        """
        self.covers = covers
        self.held: dict[int, HeldRequest] = {}
        """By the order of their arrival."""
        self._fleet = fleet
        self._clock = clock
        self._remaining_s = remaining_s
        self._on_needed = on_needed
        self._max_wait_s = max_wait_s or inf
        self._count = 0
        self._bytes = 0
        self._by_tenant: dict[str | None, tuple[int, int]] = {}
        """Requests and bytes that are held of each tenant."""
        self._seen_version = -1
        self._ticker = PeriodicTimer(LOOP, LOOK_S, self._look, lambda: self.held)

    def wait_until_s(self, objective: LatencyObjective, since_s: float, model: str) -> float:
        """Return the loop time until which a request waits: its tier's wait, for one without a tier twice the start."""
        own_s = objective.max_queue_s
        if own_s == inf and self._max_wait_s == inf:
            own_s = 2 * max(self._remaining_s(model), MIN_RETRY_S)
        return since_s + min(own_s, self._max_wait_s)

    async def wait(self, context: RequestContext, objective: LatencyObjective, since_s: float) -> float:
        """Wait until a pod may serve the request. Returns the loop time until which it may wait for its turn there.

        Raises `RequestRejected`: at once where the start takes longer than it may wait, else when its wait ends.
        """
        model, now_s = context.request.model, self._clock()
        call_guarded(LOOP, self._on_needed, model)
        by_s, remaining_s = self.wait_until_s(objective, since_s, model), self._remaining_s(model)
        if now_s >= by_s or (now_s + remaining_s > by_s and not self._fleet.may_discover_more(context.request.regions)):
            raise _not_in_time(model, objective, by_s - since_s, remaining_s)
        size = context.request.prompt.size
        tenant = context.caller.tenant.name
        of_tenant, bytes_of_tenant = self._by_tenant.get(tenant, (0, 0))
        if (
            len(self.held) >= MAX_WAITING
            or self._bytes + size > MAX_WAITING_BYTES
            or of_tenant >= TENANT_SHARE * MAX_WAITING
            or bytes_of_tenant + size > TENANT_SHARE * MAX_WAITING_BYTES
        ):
            raise RequestRejected(
                Reason.QUEUE_FULL, f"Too many requests wait for a pod of `{model}`.", retry_after_s=_shown(remaining_s)
            )
        self._count += 1
        number = self._count
        held = HeldRequest(context, objective, since_s, asyncio.get_running_loop().create_future())
        self.held[number] = held
        self._add(tenant, 1, size)
        self._ticker.start()
        try:
            async with asyncio.timeout(by_s - now_s):
                await held.future
        except TimeoutError:
            raise _not_in_time(model, objective, by_s - since_s, self._remaining_s(model)) from None
        finally:
            self._add(tenant, -1, -size)
            self.held.pop(number, None)
        return by_s

    def _add(self, tenant: str | None, count: int, size: int) -> None:
        """Count what is held, all in all and of one tenant."""
        self._bytes += size
        of_tenant, bytes_of_tenant = self._by_tenant.get(tenant, (0, 0))
        if of_tenant + count:
            self._by_tenant[tenant] = of_tenant + count, bytes_of_tenant + size
        else:
            del self._by_tenant[tenant]

    def _look(self) -> None:
        """Wake the requests that a pod may serve now, the highest tier first."""
        if self._fleet.version == self._seen_version:
            return
        self._seen_version = self._fleet.version
        served = [held for held in self.held.values() if not held.future.done() and self._has_pod(held)]
        for held in sorted(served, key=lambda each: (-each.objective.tier.priority, each.since_s)):
            held.future.set_result(None)

    def _has_pod(self, held: HeldRequest) -> bool:
        fleet, request = self._fleet, held.context.request
        place = request.model, request.regions
        return bool(fleet.eligible(*place).engines or fleet.eligible_failing(*place).engines)


def _not_in_time(model: str, objective: LatencyObjective, wait_s: float, remaining_s: float) -> RequestRejected:
    message = (
        f"No pod serves `{model}`: one is being started and is expected in {_shown(remaining_s):.0f} s; "
        f"tier `{objective.tier.name}` waits {wait_s:.0f} s."
    )
    return RequestRejected(Reason.NO_POD_READY, message, param="model", retry_after_s=_shown(remaining_s))


def _shown(remaining_s: float) -> float:
    return max(remaining_s, MIN_RETRY_S)
