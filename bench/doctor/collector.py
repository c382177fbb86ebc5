"""Facts of the simulated fleet: what the production parser reads of its pages, and the gateway's own view."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bench.doctor.fleet import Fleet, PodView
from bench.doctor.pods import SimulatedPod, balances_of, build_of, counts_of, environment_of, flags_of, hardware_of
from diagnosis.distribution import distribution_of, medians_by_step
from diagnosis.facts import (
    CACHED_TOKENS,
    COURSE_STEP_S,
    KV_EVENTS,
    PRIORITY,
    EngineWindow,
    FleetFacts,
    GatewayLoad,
    GatewayView,
    PodObservation,
)
from diagnosis.readings import WINDOW_S, PodHistory
from diagnosis.request_times import RequestTimes, joined

EPOCH_S = 1_790_000_000.0
"""Unix time at which the virtual clock begins."""

WANTED = {"chat": frozenset({PRIORITY, CACHED_TOKENS, KV_EVENTS}), "rag": frozenset({CACHED_TOKENS})}


class Collector:
    """Reads the fleet every few seconds."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._histories: dict[str, PodHistory] = {}
        self._windows: dict[str, tuple[EngineWindow, ...]] = {}
        self._draws = Random(5)
        self._busy: list[tuple[float, float]] = []
        self.clock_offsets: dict[str, float] = {}
        self.single_services: frozenset[str] = frozenset()

    def read(self) -> None:
        """Read all pods."""
        now = EPOCH_S + self._fleet.loop.time()
        for address in [address for address in self._histories if address not in self._fleet.pods]:
            del self._histories[address], self._windows[address]
        for address, pod in self._fleet.pods.items():
            if pod.waiting is not None:
                continue
            history = self._histories.setdefault(address, PodHistory())
            history.add(now, counts_of(pod, balances_of(pod, self._draws)))
            windows = self._windows[address] = history.windows()
            queues = [each.queue for each in windows if each.queue is not None and each.queue.count]
            if queues:
                total, count = sum(each.total for each in queues), sum(each.count for each in queues)
                self._fleet.queue_means[address] = total / count
        self._busy.append((self._fleet.loop.time(), self._fleet.busy_s))
        del self._busy[:-30]

    def facts(self) -> FleetFacts:
        """Return all facts as of now."""
        now = EPOCH_S + self._fleet.loop.time()
        times = joined(self._fleet.times())
        shifted = {key: _shifted(each.start_s, each.end_s, each) for key, each in times.items()}
        return FleetFacts(
            at_s=now,
            pods=tuple(self._pod(address, pod, now) for address, pod in self._fleet.pods.items()),
            gateways=(self._gateway(now),),
            clock_offsets_s={address: self.clock_offsets.get(address, 0.01) for address in self._fleet.pods},
            clocks_read_at_s=now,
            times=shifted,
            wanted_features=WANTED,
            single_services=self.single_services,
        )

    def _pod(self, address: str, pod: SimulatedPod, now: float) -> PodObservation:
        plan = pod.plan
        return PodObservation(
            address=address,
            pool=plan.pool,
            model=plan.pool,
            role=plan.role,
            ready_since_s=EPOCH_S + pod.ready_since_s,
            engines=self._windows.get(address, ()),
            requests=self._view(self._fleet.views[address], now),
            flags=flags_of(plan, now),
            build=build_of(plan, now),
            environment=environment_of(plan, now),
            hardware=hardware_of(plan, now),
            metadata_service=plan.metadata_service,
        )

    def _view(self, view: PodView, now: float) -> GatewayView:
        view.trim(now - EPOCH_S)
        begin = now - EPOCH_S - WINDOW_S
        sent = [drawn for at, drawn in view.sent if at >= begin]
        ended = [each for each in view.ended if each.at_s >= begin]
        salts = [drawn.salt for drawn in sent if drawn.salt]
        gaps = [(each.gap_s, each.drawn.is_constrained) for each in ended if each.gap_s is not None]
        return GatewayView(
            start_s=now - WINDOW_S,
            end_s=now,
            requests=len(sent),
            errors=0.0,
            constrained=sum(drawn.is_constrained for drawn in sent),
            salted=len(salts),
            salts=len(set(salts)),
            predicted_cached_tokens=sum(each.predicted_tokens for each in ended),
            actual_cached_tokens=sum(each.cached_tokens for each in ended),
            prompt_tokens=sum(each.drawn.prompt_tokens for each in ended),
            first_token=distribution_of(each.first_token_s for each in ended),
            first_token_course=medians_by_step(
                ((EPOCH_S + each.first_at_s, each.first_token_s) for each in ended if each.first_at_s >= begin),
                COURSE_STEP_S,
            ),
            token_gap=distribution_of(gap for gap, _ in gaps),
            constrained_token_gap=distribution_of(gap for gap, is_constrained in gaps if is_constrained),
            pairs=sum(at >= begin for at, _ in view.pairs),
            lost_pairs=sum(is_lost for at, is_lost in view.pairs if at >= begin),
            handover=distribution_of(seconds for at, seconds in view.handovers if at >= begin),
        )

    def _gateway(self, now: float) -> GatewayLoad:
        virtual = now - EPOCH_S
        begin = next(((at, busy) for at, busy in self._busy if at >= virtual - WINDOW_S), (0.0, 0.0))
        # What was handed to the process is not yet done where it is behind.
        done = self._fleet.busy_s - max(self._fleet.busy_until_s - virtual, 0.0)
        length = virtual - begin[0]
        cpu = min(max((done - begin[1]) / length, 0.0), 1.0) if length > 0 else None
        recent = virtual - WINDOW_S
        return GatewayLoad(
            start_s=now - WINDOW_S,
            end_s=now,
            name="gateway-0",
            cpu=cpu,
            loop_lag=distribution_of(lag for at, lag in self._fleet.lags if at >= recent),
            redis=distribution_of(seconds for at, seconds in self._fleet.redis if at >= recent),
        )


def _shifted(start_s: float, end_s: float, times: RequestTimes) -> RequestTimes:
    return replace(times, start_s=EPOCH_S + start_s, end_s=EPOCH_S + end_s)
