"""The inputs of a supply decision: offered work by tier, and what each pool's engines can do. Values only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from routing.facts import Role

__all__ = [
    "EngineSpeed",
    "ModelLoad",
    "OfferedWork",
    "PoolLoad",
    "RejectedWork",
    "Role",
    "TierLoad",
    "TierObjective",
    "count_rejected",
]


@dataclass(frozen=True, slots=True)
class OfferedWork:
    """Requests and their tokens: per second where it is a rate, absolute where it is a stock."""

    requests: float = 0.0
    prefill_tokens: float = 0.0
    """Prompt tokens that have to be computed: those without a cached copy, as tokens of a short context."""
    output_tokens: float = 0.0

    def __add__(self, other: OfferedWork) -> OfferedWork:
        return OfferedWork(
            self.requests + other.requests,
            self.prefill_tokens + other.prefill_tokens,
            self.output_tokens + other.output_tokens,
        )

    def scaled(self, factor: float) -> OfferedWork:
        """Return the work times `factor`."""
        return OfferedWork(self.requests * factor, self.prefill_tokens * factor, self.output_tokens * factor)

    def capped(self, limit: OfferedWork) -> OfferedWork:
        """Return the work scaled down so that no part exceeds `limit`; the mixture stays."""
        share = min(
            (
                max(bound, 0.0) / own
                for own, bound in (
                    (self.requests, limit.requests),
                    (self.prefill_tokens, limit.prefill_tokens),
                    (self.output_tokens, limit.output_tokens),
                )
                if own > 0
            ),
            default=1.0,
        )
        return self if share >= 1.0 else self.scaled(share)


NO_WORK = OfferedWork()


@dataclass(frozen=True, slots=True)
class TierObjective:
    """What a tier's requests need, and with which probability."""

    name: str = "default"
    priority: int = 0
    """Higher is served first."""
    ttft_s: float = inf
    ttft_uncached_factor: float = 0.0
    """Added to the TTFT: this many times the request's own prefill seconds on an idle engine."""
    tpot_s: float = inf
    probability: float = 0.95
    """Share of requests that shall meet the objective."""
    is_best_effort: bool = False
    """Uses idle engines only: no engine is added for it."""

    @property
    def is_bound(self) -> bool:
        """Whether there is an objective at all."""
        return self.ttft_s < inf or self.tpot_s < inf


@dataclass(frozen=True, slots=True)
class TierLoad:
    """Offered work of one tier for one model. Rates are means over the load's window.

    Internal traffic (prewarm, shadow, probes) is not part of it.
    """

    objective: TierObjective = TierObjective()
    admitted: OfferedWork = NO_WORK
    """Per second."""
    rejected: OfferedWork = NO_WORK
    """Per second; retries count once and only within the tenant's limits (`count_rejected`)."""
    returning: OfferedWork = NO_WORK
    """Per second: rejected earlier, expected again by their Retry-After, not yet seen again."""
    queued: OfferedWork = NO_WORK
    """Stock: what waits now without having been forwarded, on all gateways together."""
    oldest_queued_s: float = 0.0
    """Age of the oldest waiting request."""
    running: float = 0.0
    """Sequences that are being decoded: mean over the window."""
    context_tokens: float = 2_000.0
    """KV tokens that a running sequence holds on average, its output so far included."""
    arrival_scv: float = 1.0
    """Squared coefficient of variation of times between arrivals; 1 for a Poisson process."""
    prefill_scv: float = 1.0
    """Squared coefficient of variation of the uncached prompt tokens of a request."""
    attained: float | None = None
    """Share of finished requests of the window that met the objective; None without a finished request."""
    finished: float = 0.0
    """Finished and rejected requests behind `attained`."""
    pools: frozenset[str] | None = None
    """Pools that residency and isolation allow; None: all."""
    resident: tuple[tuple[frozenset[str], OfferedWork], ...] = ()
    """Parts of `admitted` that residency keeps in some pools: these pools, and the work per second."""

    @property
    def offered(self) -> OfferedWork:
        """Per second: admitted, rejected and returning together."""
        return self.admitted + self.rejected + self.returning

    def by_residency(self) -> list[TierLoad]:
        """Return the tier in parts, each with the pools that residency allows; rejected work is divided alike."""
        left, parts = 1.0, list[TierLoad]()
        total = self.admitted.prefill_tokens + self.admitted.output_tokens
        for pools, work in self.resident if total > 0 else ():
            share = min((work.prefill_tokens + work.output_tokens) / total, left)
            left -= share
            parts.append(self._part(share, pools if self.pools is None else pools & self.pools))
        return [*parts, self._part(left, self.pools)] if left > 0 or not parts else parts

    def _part(self, share: float, pools: frozenset[str] | None) -> TierLoad:
        if share >= 1 and pools == self.pools:
            return self
        rates = {name: getattr(self, name).scaled(share) for name in ("admitted", "rejected", "returning", "queued")}
        return replace(self, **rates, running=self.running * share, pools=pools, resident=())


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """What one engine of a kind of hardware does: learned where it was seen, else the prior of its profile."""

    kind: str = "default"
    prefill_tokens_per_s: float = 12_000.0
    step_base_s: float = 0.012
    step_per_sequence_s: float = 0.000_1
    step_per_kv_token_s: float = 0.000_000_02
    kv_capacity_tokens: float = 1_000_000.0
    max_sequences: int = 256
    chunk_tokens: int = 8_192
    """Tokens that one step computes at most (`max_num_batched_tokens`)."""

    def step_s(self, sequences: float, context_tokens: float) -> float:
        """Return seconds of one decode step of `sequences` that hold `context_tokens` each."""
        return (
            self.step_base_s
            + sequences * self.step_per_sequence_s
            + sequences * context_tokens * self.step_per_kv_token_s
        )


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """One pool that serves a model in one role: what it has, what it costs, where it is."""

    pool: str = "default"
    role: Role = Role.EITHER
    speed: EngineSpeed = EngineSpeed()
    ready: int = 0
    """Engines that take requests."""
    starting: int = 0
    """Engines that the cluster has granted and that do not serve yet."""
    draining: int = 0
    """Engines that finish their streams and take no more."""
    requested: int | None = None
    """Engines that were requested of the cluster (replicas of the workload); None: unknown."""
    oldest_start_s: float = 0.0
    """Seconds since the oldest engine in `starting`, or the oldest one not granted, was requested."""
    start_s: float = 60.0
    """Learned seconds from the request of an engine to its first served request: an upper quantile."""
    busy: float = 0.0
    """Streams, batches and held requests that need the pool now: a pool with any does not go to zero."""
    price_per_hour: float = 1.0
    """Of one engine."""
    rank: int = 0
    """Lower is used first, whatever the price: 0 for on-prem, 1 for a cloud."""
    region: str = ""
    distance_s: float = 0.0
    """Round trip from the gateways, in seconds."""

    @property
    def engines(self) -> int:
        """Return the engines that are paid and will serve: ready and starting."""
        return self.ready + self.starting


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """All that a decision about one model reads. Equal values give equal answers on every gateway."""

    model: str = ""
    tiers: tuple[TierLoad, ...] = ()
    pools: tuple[PoolLoad, ...] = ()
    window_s: float = 60.0
    """Over which rates are means."""
    age_s: float = 0.0
    """Seconds since the oldest figure was taken."""
    completeness: float = 1.0
    """Share of the gateways (or of their last known load) whose figures are included, 0 to 1."""
    held: int = 0
    """Requests that wait because the model has no ready engine."""


@dataclass(frozen=True, slots=True)
class RejectedWork:
    """One rejection. Retries of a client carry the same fingerprint."""

    tenant: str
    tier: str
    fingerprint: Hashable
    work: OfferedWork = field(default_factory=lambda: OfferedWork(requests=1.0))
    is_limit: bool = False
    """Rejected by a limit, a budget or a fault of the client: does not count at all."""


def count_rejected(
    rejections: Iterable[RejectedWork],
    *,
    window_s: float,
    allowances: Mapping[str, OfferedWork],
    served: Iterable[Hashable] = (),
) -> dict[str, OfferedWork]:
    """Return rejected work per second by tier: each fingerprint once, each tenant within its allowance.

    `allowances` is the work per second by tenant that its limits and budget leave beyond what was admitted. For a
    tenant without limits it is the work that was admitted: a loop of new prompts then at most doubles what counts.
    Rejections of a tenant that is missing there do not count. `served` are fingerprints that were admitted later.
    """
    counted = set(served)
    sums: dict[tuple[str, str], OfferedWork] = {}
    for rejection in rejections:
        if rejection.is_limit or rejection.fingerprint in counted:
            continue
        counted.add(rejection.fingerprint)
        key = rejection.tenant, rejection.tier
        sums[key] = sums.get(key, NO_WORK) + rejection.work.scaled(1 / window_s)
    totals: dict[str, OfferedWork] = {}
    for (tenant, _), work in sums.items():
        totals[tenant] = totals.get(tenant, NO_WORK) + work
    by_tier: dict[str, OfferedWork] = {}
    for (tenant, tier), work in sums.items():
        total = totals[tenant]
        kept = total.capped(allowances.get(tenant, NO_WORK))
        by_tier[tier] = by_tier.get(tier, NO_WORK) + work.scaled(_share(kept, total))
    return by_tier


def _share(kept: OfferedWork, total: OfferedWork) -> float:
    for own, all_of_it in (
        (kept.requests, total.requests),
        (kept.prefill_tokens, total.prefill_tokens),
        (kept.output_tokens, total.output_tokens),
    ):
        if all_of_it > 0:
            return own / all_of_it
    return 0.0
