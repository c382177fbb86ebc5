"""The gate: the one place where a request may leave the fleet, whatever it is sent for.

Answers, escalations, shadow samples, judges and prefills all go through the transport of their request; an attempt at
an endpoint is sent only with a `Permit` of this gate. It looks at the tenant, not at what routing has decided: the
grants of a request keep the router from choosing an endpoint, the gate keeps anything else from reaching it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config.providers import ProviderEndpoint
from gateway.http.request_headers import LOCAL_ONLY_HEADER
from gateway.limits.accounts import QuotaEnforcer
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from gateway.providers.bodies import OutgoingBody, outgoing_body
from gateway.providers.monitor import ProviderMonitor, WatchedEndpoint
from gateway.providers.translation import Untranslatable
from routing.affinity import RecentMap
from routing.request import Request, Usage
from tenancy.limits.account_usage import Reservation
from tenancy.limits.usage import NO_USAGE, RequestUsage, TokenPrices
from tenancy.tenants import Tenant

BYTES_PER_TOKEN = 2.0
"""For reservations: no common tokenizer makes more tokens of a prompt of this many bytes."""

SHARE_MEMORY = 1000.0
"""Time constant of shares, in requests."""

MAX_TENANTS = 4096


@dataclass(frozen=True, slots=True)
class Denial:
    """Why nothing was sent."""

    end: AttemptStatus
    detail: str


class TenantShare:
    """Which share of a tenant's requests was sent to providers."""

    __slots__ = ("_sent", "_total")

    def __init__(self) -> None:
        self._sent = 0.0
        self._total = 0.0

    def may_send(self, max_share: float) -> bool:
        """Return whether one more request may be sent."""
        return max_share >= 1.0 or self._sent + 1.0 <= max_share * (self._total + 1.0)

    def count_sent(self) -> None:
        """Count a request that is about to be sent."""
        self._sent += 1.0

    def count_request(self) -> None:
        """Count a request that has ended."""
        fading = 1.0 - 1.0 / SHARE_MEMORY
        self._sent, self._total = self._sent * fading, self._total * fading + 1.0


class Permit:
    """Leave to send one request to one endpoint, with the money for it. Must be settled or closed."""

    def __init__(
        self,
        endpoint: WatchedEndpoint,
        config: ProviderEndpoint,
        body: OutgoingBody,
        rates: TokenPrices,
        money: Reservation | None,
        is_forbidden: Callable[[], bool],
    ) -> None:
        self.is_forbidden = is_forbidden
        """Whether the policy or the configuration of now forbids what was permitted."""
        self.endpoint = endpoint
        self.config = config
        """The endpoint as it was when the request was permitted."""
        self.body = body
        self._rates = rates
        self._money = money
        endpoint.open_requests += 1
        self._is_open = True

    def close(self, usage: Usage | None, now_s: float, *, was_sent: bool) -> None:
        """Settle the money by the usage that the endpoint has reported.

        `usage` None, or without tokens of the prompt (only the answer was counted): it reported none, so what was
        reserved stays charged, unless nothing was sent or it rejected the request (`was_sent` false).
        """
        if not self._is_open:
            return
        self._is_open = False
        self.endpoint.open_requests -= 1
        money = self._money
        used: RequestUsage | None = None
        if not was_sent:
            used = NO_USAGE
        elif usage is not None and usage.prompt_tokens:
            used = RequestUsage(
                1, usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens, rates=self._rates
            )
        self.endpoint.spent += used.cost if used is not None else 0.0 if money is None else money.held.cost
        if money is not None:
            if used is not None:
                money.settle(used, now_s)
            money.close(now_s)


class ProviderGate:
    """One per gateway process."""

    def __init__(self, monitor: ProviderMonitor, quotas: QuotaEnforcer, processes: int = 1) -> None:
        """`processes` of this host divide `max_parallel_requests`, since each has a gate of its own."""
        self.monitor = monitor
        self._processes = processes
        self._quotas = quotas
        self._shares: RecentMap[str, TenantShare] = RecentMap(MAX_TENANTS)
        self.denied: dict[tuple[str, str], int] = {}
        """Requests that were not sent, by endpoint and end."""

    def serves(self, url: str) -> bool:
        """Return whether a URL is that of an endpoint outside the fleet, also of one that a reload has removed."""
        return self.monitor.is_outside(url)

    async def permit(
        self, url: str, tenant: Tenant, request: Request, body: bytes, *, is_local_only: bool, is_continuation: bool
    ) -> Permit | Denial:
        """Return leave to send a request to an endpoint, or why not. Reserves its money.

        What counts is the policy of now: the request may have waited since its own was read.
        """
        endpoint = self.monitor.get(url)

        def forbidden() -> Denial | None:
            return self._forbidden(
                endpoint,
                self._quotas.current(tenant),
                request,
                is_local_only=is_local_only,
                is_continuation=is_continuation,
            )

        def denial() -> Denial | None:
            return forbidden() or self._beyond_limits(endpoint, self._quotas.current(tenant))

        found: Permit | Denial | None = denial()
        if found is None and endpoint is not None:
            try:
                out = outgoing_body(endpoint.config, request.api, body, request.model)
            except Untranslatable as why:
                found = Denial(AttemptStatus.PROVIDER_DENIED, f"{endpoint.config.name}: {why}.")
            else:
                now = self._quotas.current(tenant) or tenant
                found = await self._with_money(endpoint, now, request, out, denial, forbidden)
        assert found is not None  # noqa: S101 - an unknown endpoint is denied above
        if isinstance(found, Denial):
            key = (endpoint.config.name if endpoint is not None else "", found.end.value)
            self.denied[key] = self.denied.get(key, 0) + 1
        return found

    def _forbidden(
        self,
        endpoint: WatchedEndpoint | None,
        tenant: Tenant | None,
        request: Request,
        *,
        is_local_only: bool,
        is_continuation: bool,
    ) -> Denial | None:
        denied = AttemptStatus.PROVIDER_DENIED
        if endpoint is None or self.monitor.is_stopped or self.monitor.get(endpoint.config.url) is not endpoint:
            return Denial(denied, "Providers are stopped (`providers.enabled`, or the admin port).")
        config = endpoint.config
        grant = config.provider, config.region, request.model
        if tenant is None or grant not in tenant.grants or request.model not in config.models:
            where = f"provider `{config.provider}`, region `{config.region}`, model `{request.model}`"
            return Denial(denied, f"The tenant's policy has no grant for {where}.")
        if tenant.trust_domain is not None or (tenant.regions is not None and config.region not in tenant.regions):
            return Denial(denied, "The tenant's data is isolated, or bound to other regions.")
        if is_local_only:
            return Denial(denied, f"The request is kept within the fleet (`{LOCAL_ONLY_HEADER.decode()}`).")
        if is_continuation or request.continues is not None:
            return Denial(denied, "What another pod has begun or stored cannot be continued by a provider.")
        return None

    def _beyond_limits(self, endpoint: WatchedEndpoint | None, tenant: Tenant | None) -> Denial | None:
        limit = AttemptStatus.PROVIDER_LIMIT
        if endpoint is not None and not self._has_free(endpoint):
            return Denial(limit, f"{endpoint.config.name} has `max_parallel_requests` under way.")
        if tenant is not None and not self._share_of(tenant).may_send(tenant.provider_max_share):
            return Denial(limit, "The tenant's `providers_max_share` is reached.")
        return None

    def _has_free(self, endpoint: WatchedEndpoint) -> bool:
        return endpoint.open_requests < max(1, endpoint.config.max_parallel_requests // self._processes)

    async def _with_money(
        self,
        endpoint: WatchedEndpoint,
        tenant: Tenant,
        request: Request,
        body: OutgoingBody,
        denial: Callable[[], Denial | None],
        forbidden: Callable[[], Denial | None],
    ) -> Permit | Denial:
        """Reserve the money of a request. `denial` looks again at what may have changed while it waited for that;
        `forbidden` at what no permit outlives.
        """
        config = endpoint.config
        rates = self._quotas.rates(request.model)
        bound = RequestUsage(1, int(len(body.content) / BYTES_PER_TOKEN) + 1, 0, body.max_output_tokens, rates)
        money: Reservation | None = None
        if tenant.provider_budget is not None:
            held = await self._quotas.reserve_on(tenant.provider_account, bound)
            if held is None:
                return Denial(AttemptStatus.PROVIDER_LIMIT, "The tenant's `providers_max_budget` has no room for it.")
            money = held
            denied = denial()
            if denied is None and endpoint.config != config:
                denied = Denial(AttemptStatus.PROVIDER_DENIED, f"{config.name} was configured anew meanwhile.")
            if denied is not None:
                now_s = self._quotas.now_s()
                held.settle(NO_USAGE, now_s)
                held.close(now_s)
                return denied
        self._share_of(tenant).count_sent()
        endpoint.sent_count += 1
        return Permit(endpoint, config, body, rates, money, lambda: forbidden() is not None)

    def is_valid(self, permit: Permit) -> bool:
        """Return whether its request may still be sent: a connection may have taken long to open."""
        return permit.endpoint.config == permit.config and not permit.is_forbidden()

    def has_room(self, tenant: Tenant, model: str) -> bool:
        """Return whether share and parallel requests leave room for a request to a model's providers now."""
        endpoints = [each for each in self.monitor if model in each.config.models]
        return any(map(self._has_free, endpoints)) and self._share_of(tenant).may_send(tenant.provider_max_share)

    def close(self, permit: Permit, usage: Usage | None, *, was_sent: bool) -> None:
        """Settle a permit, however its request has ended."""
        permit.close(usage, self._quotas.now_s(), was_sent=was_sent)

    def _share_of(self, tenant: Tenant) -> TenantShare:
        name = tenant.name or ""
        share = self._shares.get(name)
        if share is None:
            share = TenantShare()
            self._shares.put(name, share)
        return share

    # -- as an observer ------------------------------------------------------------------------------------------------

    def on_outcome(self, outcome: Outcome) -> None:
        """Count a request that has ended for its tenant's share, and name on its record where it was sent."""
        share = self._shares.get(outcome.tenant or "")
        if share is not None:
            share.count_request()
        sent = [
            f"{label}/{attempt.model}"
            for attempt in outcome.attempts
            if (label := self.monitor.label_of(attempt.engine)) is not None and attempt.result not in NOT_SENT
        ]
        if sent:
            outcome.providers = tuple(dict.fromkeys(sent))


NOT_SENT = frozenset(
    {AttemptStatus.PROVIDER_DENIED.value, AttemptStatus.PROVIDER_LIMIT.value, AttemptStatus.UNREACHABLE.value}
)
"""Ends of attempts of which the endpoint has received nothing."""
