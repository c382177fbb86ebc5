"""The figures of all gateways, as one gateway has received them: rates over a window, stocks, and what is missing.

Every gateway keeps them, so that any can decide. A peer that has fallen silent without leaving counts as missing for
`MISSING_S`: it may serve requests that are not known here. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import add

from msgspec import Struct

from gateway.scaling.figures import (
    MAX_RESIDENCIES,
    NO_SUMS,
    GatewayFigures,
    RejectedFigures,
    TierFigures,
    WorkSums,
)
from supply.load import OfferedWork, RejectedWork, count_rejected

TierKey = tuple[str, str]
"""Model and tier."""

WINDOW_S = 30.0
"""Over which rates are means."""

FRESH_S = 4.0
"""A gateway reports every second: older figures are stale."""

MISSING_S = 300.0
"""How long a gateway counts as missing after it has fallen silent."""

LEFT_S = 30.0
"""How long a gateway that has drained is remembered as such."""

MAX_GATEWAYS = 4_096

MAX_REJECTIONS = 4_096
"""Within the window, of all gateways together."""

MAX_KEYS = 1_024
"""Models times tiers of all gateways together."""

RUNNING_SHARE = 0.1
"""Weight of the newest sample in the mean of running sequences: a memory of about ten seconds."""

MIN_RUNNING = 0.05
"""A smaller mean is none: otherwise an idle pool would look busy for minutes."""

NO_POD_S = 60.0
"""How long a request that was rejected for lack of a pod counts as held: its client waits to send it again."""


class TierRates(Struct, gc=False):
    """Differences of the sums of a tier within a window."""

    requests: float = 0.0
    prefill_tokens: float = 0.0
    prefill_squares: float = 0.0
    output_tokens: float = 0.0
    context_tokens: float = 0.0
    answered: float = 0.0
    finished: float = 0.0
    met: float = 0.0
    resident: dict[str, WorkSums] = {}
    """By regions: the part of the placed work that residency bounds."""

    def add_difference(self, new: TierFigures, old: TierFigures) -> None:
        """Add what has grown between two figures; a sum that has fallen is of a gateway that began anew."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + max(0.0, getattr(new, name) - getattr(old, name)))
        for regions, work in new.resident.items():
            before = old.resident.get(regions, NO_SUMS)
            self._add_resident(regions, (max(0.0, one - other) for one, other in zip(work, before, strict=True)))

    def add(self, other: TierRates) -> None:
        """Add the differences of another part of the window."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for regions, work in other.resident.items():
            self._add_resident(regions, work)

    def _add_resident(self, regions: str, parts: Iterable[float]) -> None:
        known = self.resident.get(regions)
        if known is not None or len(self.resident) < MAX_RESIDENCIES:
            requests, prefill, output = map(add, known or NO_SUMS, parts)
            self.resident[regions] = requests, prefill, output


SUMS = tuple(name for name in TierRates.__struct_fields__ if name != "resident")


@dataclass(slots=True)
class KnownGateway:
    """The last figures of one gateway."""

    at_s: float
    figures: GatewayFigures
    by_key: dict[TierKey, TierFigures] = field(default_factory=dict)


class FigureBook:
    """The figures of this gateway and its peers."""

    def __init__(self) -> None:
        self.gateways: dict[int, KnownGateway] = {}
        self.running: dict[TierKey, float] = {}
        """Sequences that run, as a decayed mean."""
        self._missing: dict[int, float] = {}
        """When gateways that did not leave fell silent."""
        self._left: dict[int, float] = {}
        """When gateways that drained reported last: replica sync lists them for some seconds more."""
        self._seconds: deque[tuple[int, dict[TierKey, TierRates]]] = deque()
        self._rejected: deque[tuple[float, RejectedFigures]] = deque(maxlen=MAX_REJECTIONS)
        self._served: deque[tuple[float, int]] = deque(maxlen=MAX_REJECTIONS)
        self._since_s: float | None = None
        self._verdicts: dict[str, tuple[float, float]] = {}

    def take(self, replica_id: int, figures: GatewayFigures, now_s: float) -> None:
        """Take the figures of a gateway."""
        known = self.gateways.get(replica_id)
        if known is None and len(self.gateways) >= MAX_GATEWAYS:
            return
        if known is None and self._missing:  # It is back, or another has taken its place.
            self._missing.pop(replica_id if replica_id in self._missing else next(iter(self._missing)))
        if self._since_s is None:
            self._since_s = now_s
        by_key = {(each.model, each.tier): _copy(each) for each in figures.tiers[:MAX_KEYS]}
        if known is not None:
            bucket = self._bucket(now_s)
            for key, new in by_key.items():
                old = known.by_key.get(key, NO_FIGURES)
                rates = bucket.get(key)
                if rates is None:
                    if len(bucket) >= MAX_KEYS:
                        continue
                    rates = bucket[key] = TierRates()
                rates.add_difference(new, old)
                finished, met = self._verdicts.get(key[0], (0.0, 0.0))
                more = max(0.0, new.finished - old.finished), max(0.0, new.met - old.met)
                self._verdicts[key[0]] = finished + more[0], met + more[1]
        self.gateways[replica_id] = KnownGateway(now_s, figures, by_key)
        self._rejected.extend((now_s - max(0.0, each.age_s), each) for each in figures.rejected)
        self._served.extend((now_s, face) for face in figures.served)

    def expire(self, now_s: float) -> None:
        """Drop what is too old, and note which gateways are missing. Called about once a second."""
        for replica_id in [each for each, view in self.gateways.items() if view.at_s < now_s - FRESH_S]:
            view = self.gateways.pop(replica_id)
            (self._left if view.figures.is_leaving else self._missing)[replica_id] = view.at_s
        self._left = {each: at_s for each, at_s in self._left.items() if at_s >= now_s - LEFT_S}
        for replica_id in [each for each, at_s in self._missing.items() if at_s < now_s - MISSING_S]:
            del self._missing[replica_id]
        while self._seconds and self._seconds[0][0] < now_s - WINDOW_S:
            self._seconds.popleft()
        while self._rejected and self._rejected[0][0] < now_s - max(WINDOW_S, NO_POD_S):
            self._rejected.popleft()
        while self._served and self._served[0][0] < now_s - max(WINDOW_S, NO_POD_S):
            self._served.popleft()
        stocks = self._stocks()
        for key in set(self.running) | set(stocks):
            mean = self.running.get(key, 0.0)
            mean += RUNNING_SHARE * ((stocks[key].running if key in stocks else 0.0) - mean)
            if mean > MIN_RUNNING:
                self.running[key] = mean
            else:
                self.running.pop(key, None)

    def missing(self, own_id: int, peers: Iterable[int]) -> frozenset[int]:
        """Return the gateways without figures: peers that send none, and those that have fallen silent."""
        silent = {each for each in peers if not (each in self.gateways or each in self._left or each == own_id)}
        return frozenset(silent | set(self._missing))

    def oldest(self) -> int | None:
        """Return the gateway that began first of those with figures, without those that leave; None without any."""
        staying = [each for each, view in self.gateways.items() if not view.figures.is_leaving]
        return min(staying, key=self.rank, default=None)

    def rank(self, replica_id: int) -> tuple[float, int]:
        """Return what gateways are ordered by: their start, then their id. A new one has no memory to decide with."""
        view = self.gateways.get(replica_id)
        return (inf if view is None else view.figures.started_s, replica_id)

    def age_s(self, now_s: float) -> float:
        """Return the age of the oldest figures."""
        return max((now_s - view.at_s for view in self.gateways.values()), default=0.0)

    def window_s(self, now_s: float) -> float:
        """Return the seconds that the rates cover."""
        return WINDOW_S if self._since_s is None else max(1.0, min(WINDOW_S, now_s - self._since_s))

    def rates(self) -> dict[TierKey, TierRates]:
        """Return the differences within the window by model and tier."""
        found: dict[TierKey, TierRates] = {}
        for _, bucket in self._seconds:
            for key, rates in bucket.items():
                found.setdefault(key, TierRates()).add(rates)
        return found

    def arrivals(self, key: TierKey) -> list[float]:
        """Return the requests of each second of the window."""
        return [bucket[key].requests if key in bucket else 0.0 for _, bucket in self._seconds]

    def queued(self) -> dict[TierKey, TierFigures]:
        """Return what waits at all gateways, by model and tier."""
        return self._stocks()

    def held(self, now_s: float, ready: Collection[str] = ()) -> dict[str, int]:
        """Return by model the requests that wait for a pod, or were just rejected for lack of one.

        `ready`: models with a ready engine, whose rejected requests are served when they return.
        """
        found: dict[str, int] = {}
        for view in self.gateways.values():
            for model, count in view.figures.held.items():
                found[model] = found.get(model, 0) + count
        served = {face for _, face in self._served}
        faces: dict[str, set[int]] = {}
        for at_s, each in self._rejected:
            is_recent = at_s >= now_s - NO_POD_S and each.model not in ready
            if each.is_without_pod and is_recent and each.fingerprint not in served:
                faces.setdefault(each.model, set()).add(each.fingerprint)
        for model, distinct in faces.items():
            found[model] = found.get(model, 0) + len(distinct)
        return found

    def rejected(self, model: str, now_s: float, allowances: Mapping[str, OfferedWork]) -> dict[str, OfferedWork]:
        """Return the rejected work of a model per second by tier: retries folded, within the tenants' allowances."""
        window_s = self.window_s(now_s)
        works = [
            RejectedWork(
                each.tenant, each.tier, each.fingerprint, OfferedWork(1.0, each.prefill_tokens, each.output_tokens)
            )
            for at_s, each in self._rejected
            if each.model == model and at_s >= now_s - window_s
        ]
        served: list[Hashable] = [face for _, face in self._served]
        return count_rejected(works, window_s=window_s, allowances=allowances, served=served)

    def take_verdicts(self) -> dict[str, tuple[float, float]]:
        """Return by model the requests with a verdict since the last call, and those that met their objective."""
        taken, self._verdicts = self._verdicts, {}
        return taken

    def followed(self) -> set[tuple[str, str, str]]:
        """Return model, pool and role of the pools whose figures autoscalers read at any gateway."""
        return {(*each,) for view in self.gateways.values() for each in view.figures.followed}

    def admitted(self, tenant: str) -> OfferedWork:
        """Return the admitted work of a tenant with rejected requests, per second at all gateways together."""
        rates = [view.figures.tenants.get(tenant, (0.0, 0.0, 0.0)) for view in self.gateways.values()]
        return OfferedWork(*(sum(each) for each in zip(*rates, strict=True))) if rates else OfferedWork()

    def rejecting_tenants(self) -> set[str]:
        """Return the tenants with rejected requests."""
        return {each.tenant for _, each in self._rejected}

    def _stocks(self) -> dict[TierKey, TierFigures]:
        found: dict[TierKey, TierFigures] = {}
        for view in self.gateways.values():
            for key, figures in view.by_key.items():
                known = found.get(key)
                if known is None:
                    if len(found) >= MAX_KEYS:
                        continue
                    known = found[key] = TierFigures(*key)
                known.running += figures.running
                known.queued_requests += figures.queued_requests
                known.queued_prefill_tokens += figures.queued_prefill_tokens
                known.queued_output_tokens += figures.queued_output_tokens
                known.oldest_queued_s = max(known.oldest_queued_s, figures.oldest_queued_s)
        return found

    def _bucket(self, now_s: float) -> dict[TierKey, TierRates]:
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, {}))
        return self._seconds[-1][1]


NO_FIGURES = TierFigures("", "")


def _copy(figures: TierFigures) -> TierFigures:
    """Return a copy: this gateway's own figures go on changing."""
    copied = TierFigures(*(getattr(figures, name) for name in TierFigures.__struct_fields__))
    copied.resident = dict(figures.resident)
    return copied
