"""Which of our alerts fire during a run, and which of them for what the run did itself.

A real Prometheus with our rules scrapes the gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Protocol

from tests.chaos.findings import Done
from tests.deploy.expressions import RULES
from tests.deploy.prometheus import BINARY, Answer, prometheus

SCRAPE_S = 5
"""The rules' shortest window is far longer."""

FIRING = 'ALERTS{alertstate="firing"}'

REACH_S = 600.0
"""From a fault to an alert for it at most: five minutes of failures, for five minutes."""

REDIS = "redis0"

REDIS_ALERTS = frozenset(("HearthRedisLost", "HearthRedisLate", "HearthLimitsNotCoordinated"))


@dataclass(frozen=True, slots=True)
class Cause:
    """One fault of the run: the pod's URL or `REDIS`, what was done, and from when until when, by the loop's clock."""

    subject: str
    kind: str
    began_s: float
    ended_s: float


def causes_of(done: Iterable[Done], urls: Mapping[str, str]) -> list[Cause]:
    """Return the faults that were done. `urls`: of each pod by name, as gateways know it."""
    return [Cause(urls.get(one.name, one.name), one.kind, one.began_s, one.ended_s) for one in done]


class Queries(Protocol):
    """Answers PromQL."""

    async def query(self, expression: str) -> Answer:
        """Return the instant vector of an expression."""
        ...


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """One alert with its labels, and for how many evaluations it fired."""

    name: str
    labels: tuple[tuple[str, str], ...]
    evaluations: int
    faults: tuple[str, ...] = ()
    """Faults of the run that its own subject suffered while it fired or `REACH_S` before; none for an alert of calm."""

    def __str__(self) -> str:
        after = f", after {len(self.faults)} faults ({', '.join(sorted(set(self.faults)))})" if self.faults else ""
        return f"{self.name} {dict(self.labels)}, for {self.evaluations} evaluations{after}"

    def caused_by(self, causes: Iterable[Cause], first_s: float, last_s: float) -> FiredAlert:
        """Add the faults that it fired for. One that names no pod, nor Redis, has none: the fleet must bear them."""
        subject = REDIS if self.name in REDIS_ALERTS else dict(self.labels).get("upstream")
        reach_s = first_s - REACH_S
        suffered = [each for each in causes if each.subject == subject and each.began_s <= last_s]
        return replace(self, faults=tuple(each.kind for each in suffered if each.ended_s >= reach_s))


class AlertWatch:
    """Looks up what has fired, at the end of a run."""

    def __init__(self, queries: Queries, targets: int, began_s: float) -> None:
        self._queries = queries
        self._targets = targets
        self._began_s = began_s

    async def fired(self, now_s: float, causes: Sequence[Cause] = ()) -> list[FiredAlert]:
        """Return all alerts that have fired since the beginning. Raises RuntimeError if Prometheus cannot know.

        `now_s`, and the times of `causes`: on the clock of `began_s`.
        """
        window = f"[{max(1, ceil(now_s - self._began_s))}s]"
        seen = await self._queries.query(f"max_over_time(count(hearth_event_loop_tasks){window[:-1]}:{SCRAPE_S}s])")
        if max(seen.values(), default=0.0) < self._targets:
            raise RuntimeError(f"Prometheus has not scraped all of {self._targets} gateways")
        found = await self._queries.query(f"count_over_time({FIRING}{window})")
        ages_s = [
            await self._queries.query(f"time() - {last}_over_time(timestamp({FIRING}){window[:-1]}:{SCRAPE_S}s])")
            for last in ("min", "max")
        ]
        alerts = [
            alert.caused_by(causes, *(now_s - age_s.get(labels, 0.0) for age_s in ages_s))
            for labels, alert in zip(found, _alerts(found), strict=True)
        ]
        return sorted(alerts, key=lambda alert: (alert.name, alert.labels))

    async def findings(self, now_s: float) -> list[FiredAlert]:
        """Return all findings of `hearth doctor` that were raised since the beginning, likewise."""
        window = f"[{max(1, ceil(now_s - self._began_s))}s:{SCRAPE_S}s]"
        found = await self._queries.query(f"count_over_time((hearth_findings > 0){window})")
        return sorted(_findings(found), key=lambda finding: (finding.name, finding.labels))


def _alerts(found: Answer) -> Iterable[FiredAlert]:
    for labels, count in found.items():
        named = dict(labels)
        name = named.pop("alertname")
        named.pop("alertstate", None)
        yield FiredAlert(name, tuple(sorted(named.items())), round(count))


def _findings(found: Answer) -> Iterable[FiredAlert]:
    for labels, count in found.items():
        named = dict(labels)
        yield FiredAlert(named.pop("finding"), tuple(sorted(named.items())), round(count))


@asynccontextmanager
async def watching_alerts(folder: Path, metrics_urls: Iterable[str]) -> AsyncIterator[AlertWatch]:
    """Scrape these gateways until the block ends. Raises FileNotFoundError without Prometheus."""
    if not BINARY.exists():
        raise FileNotFoundError(f"{BINARY}: run sh tests/deploy/prometheus.sh")
    targets = [url.removeprefix("http://").partition("/")[0] for url in metrics_urls]
    async with AsyncExitStack() as stack:
        queries = await stack.enter_async_context(prometheus(folder, targets, [RULES], interval_s=SCRAPE_S))
        yield AlertWatch(queries, len(targets), asyncio.get_running_loop().time())
