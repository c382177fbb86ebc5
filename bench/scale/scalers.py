"""The scalers: supply decisions with and without a forecast, HPA, a queue rule of KEDA, fixed fleets, a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from bench.scale.fleet import POLL_S, SLOT_S, Observed, TierWindow
from bench.scale.traffic import GOLD_SHARE, MONDAY_S, SPEED, TIERS, Sizes
from supply.desired import EMPTY_STATE, SupplyReason, desired_engines
from supply.forecast import WorkHistory, observe
from supply.load import ModelLoad, OfferedWork, PoolLoad, RejectedWork, TierLoad, count_rejected
from supply.policy import ControlMode, GuardRails, SupplyPolicy
from supply.requirement import spread_of_counts
from supply.state import SupplyState, TierMemory

MODEL = "model"


class Ours:
    """The production decision: `supply.desired.desired_engines`."""

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        *,
        max_engines: int,
        use_forecast: bool = True,
        counts_retries: bool = False,
        clock: Callable[[float], float] = lambda now: now,
    ) -> None:
        self.name = name
        self.policy = SupplyPolicy(
            scaling=ControlMode.ACT,
            use_forecast=use_forecast,
            pools={"default": GuardRails(1, max_engines, max_engines, 24.0 * max_engines)},
        )
        self.state = EMPTY_STATE
        self.reasons: dict[SupplyReason, int] = {}
        self._sizes = sizes
        self._counts_retries = counts_retries
        self._clock = clock
        self._context = sizes.prefill_mean + sizes.output_mean / 2

    def learn(self, history: Iterable[tuple[float, float, float]], horizon_s: float) -> None:
        """Observe the days before the measured period, minute by minute: rates only."""
        shares = (GOLD_SHARE, 1 - GOLD_SHARE)
        memories = [WorkHistory() for _ in TIERS]
        for at, per_s, factor in history:
            for tier, share in enumerate(shares):
                work = self._work(per_s * share * factor)
                noise = spread_of_counts(per_s * share * 60.0, self._sizes.prefill_scv)
                memories[tier] = observe(memories[tier], work, MONDAY_S + at, horizon_s, noise)
        tiers = {f"{MODEL}|{tier.name}": TierMemory(memory) for tier, memory in zip(TIERS, memories, strict=True)}
        self.state = SupplyState(tiers=tiers)

    def wanted(self, observed: Observed) -> int:
        """Return the figure for the load of the last minute."""
        load = ModelLoad(
            MODEL,
            tuple(self._tier(at, observed) for at in range(len(TIERS))),
            (
                PoolLoad(
                    speed=SPEED,
                    ready=observed.ready,
                    starting=observed.starting,
                    requested=observed.requested,
                    oldest_start_s=observed.oldest_start_s,
                    start_s=observed.start_s,
                    busy=observed.running,
                ),
            ),
            window_s=len(observed.windows) * POLL_S,
        )
        fleet, self.state = desired_engines(load, self.policy, self.state, MONDAY_S + self._clock(observed.now_s))
        (pool,) = fleet.pools
        self.reasons[pool.reason] = self.reasons.get(pool.reason, 0) + 1
        return pool.engines

    def _work(self, requests: float) -> OfferedWork:
        return OfferedWork(requests, requests * self._sizes.prefill_mean, requests * self._sizes.output_mean)

    def _tier(self, at: int, observed: Observed) -> TierLoad:
        seconds = len(observed.windows) * POLL_S
        windows = [window[at] for window in observed.windows]
        offered, rejected = _sums(windows, seconds)
        met, finished = sum(one.met for one in windows), sum(one.finished for one in windows)
        turned_away = sum(one.rejected_requests for one in windows)
        loop = self._looped(observed) if at == len(TIERS) - 1 else OfferedWork()
        waiting, prefill, output = observed.queued[at]
        return TierLoad(
            TIERS[at],
            admitted=offered + rejected.scaled(-1),
            rejected=rejected + loop,
            queued=OfferedWork(waiting, prefill, output),
            running=observed.running / len(TIERS),
            context_tokens=self._context,
            prefill_scv=self._sizes.prefill_scv,
            attained=met / (finished + turned_away) if finished + turned_away else None,
            finished=finished + turned_away,
        )

    def _looped(self, observed: Observed) -> OfferedWork:
        """Return what the looping tenant's rejections count for: nothing beyond its limits, which are used up."""
        own = sum(window[at].rejected_requests for window in observed.windows[-1:] for at in range(len(TIERS)))
        hits = max(observed.raw_rejections - own, 0)
        if not hits:
            return OfferedWork()
        if self._counts_retries:
            return self._work(hits / POLL_S)
        each = self._work(1.0)
        found = count_rejected(
            (RejectedWork("looping", TIERS[-1].name, at % 3, each) for at in range(min(hits, 300))),
            window_s=POLL_S,
            allowances={"looping": OfferedWork()},
        )
        return found.get(TIERS[-1].name, OfferedWork())


def _sums(windows: Sequence[TierWindow], seconds: float) -> tuple[OfferedWork, OfferedWork]:
    offered = OfferedWork(
        sum(one.requests for one in windows), sum(one.prefill for one in windows), sum(one.output for one in windows)
    )
    rejected = OfferedWork(
        sum(one.rejected_requests for one in windows),
        sum(one.rejected_prefill for one in windows),
        sum(one.rejected_output for one in windows),
    )
    return offered.scaled(1 / seconds), rejected.scaled(1 / seconds)


class Hpa:
    """HPA's rule on a use of 70 %: 10 % tolerance, at most double or four more a sync, the highest of 300 s downwards.

    Its use is better than a GPU's: the share of time that prefill and the tiers' token pace take.
    """

    def __init__(self, name: str = "HPA at 70 % use", target: float = 0.7) -> None:
        self.name = name
        self._target = target
        self._recommended: deque[tuple[float, int]] = deque()

    def wanted(self, observed: Observed) -> int:
        """Return the figure of HPA's algorithm."""
        return self._stabilised(observed, self._ratio(observed))

    def _ratio(self, observed: Observed) -> float:
        return observed.ready * observed.busy_share / self._target

    def _stabilised(self, observed: Observed, raw: float) -> int:
        have = observed.ready + observed.starting
        desired = max(ceil(raw - 1e-9), 1)
        if have and abs(raw / have - 1) <= 0.1:
            desired = have
        desired = min(desired, max(2 * have, have + 4))
        self._recommended.append((observed.now_s, desired))
        while self._recommended[0][0] < observed.now_s - 300:
            self._recommended.popleft()
        return max(figure for _, figure in self._recommended) if desired < have else desired


class QueueRule(Hpa):
    """KEDA's rule on requests in flight, waiting ones included: this many for each engine, through HPA."""

    def __init__(self, each: float) -> None:
        super().__init__(f"KEDA, {each:g} requests an engine")
        self._each = each

    def _ratio(self, observed: Observed) -> float:
        return (observed.running + observed.waiting) / self._each


class Fixed:
    """The same number at all times."""

    def __init__(self, engines: int, name: str = "") -> None:
        self.name = name or f"fixed, {engines}"
        self._engines = engines

    def wanted(self, observed: Observed) -> int:
        """Return the number."""
        return self._engines


class Scheduled:
    """Engines by slot, known beforehand and requested a start-up time ahead; kept over dips that are shorter."""

    name = "clairvoyant"

    def __init__(self, slots: Sequence[int], start_s: float) -> None:
        self._slots = slots
        self._ahead_s = start_s + POLL_S

    def wanted(self, observed: Observed) -> int:
        """Return the highest figure from now until an engine requested now serves."""
        first = int(observed.now_s // SLOT_S)
        last = int((observed.now_s + self._ahead_s) // SLOT_S)
        return max(self._slots[first : last + 1], default=self._slots[-1])
