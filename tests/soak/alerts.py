"""Which of our alerts fire during a run: a real Prometheus with our rules scrapes the gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Protocol

from tests.deploy.expressions import RULES
from tests.deploy.prometheus import BINARY, Answer, prometheus

SCRAPE_S = 5
"""The rules' shortest window is far longer."""

FIRING = 'ALERTS{alertstate="firing"}'


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

    def __str__(self) -> str:
        return f"{self.name} {dict(self.labels)}, for {self.evaluations} evaluations"


class AlertWatch:
    """Looks up what has fired, at the end of a run."""

    def __init__(self, queries: Queries, targets: int, began_s: float) -> None:
        self._queries = queries
        self._targets = targets
        self._began_s = began_s

    async def fired(self, now_s: float) -> list[FiredAlert]:
        """Return all alerts that have fired since the beginning. Raises RuntimeError if Prometheus cannot know.

        `now_s`: on the clock of `began_s`.
        """
        window = f"[{max(1, ceil(now_s - self._began_s))}s]"
        seen = await self._queries.query(f"max_over_time(count(hearth_event_loop_tasks){window[:-1]}:{SCRAPE_S}s])")
        if max(seen.values(), default=0.0) < self._targets:
            raise RuntimeError(f"Prometheus has not scraped all of {self._targets} gateways")
        found = await self._queries.query(f"count_over_time({FIRING}{window})")
        return sorted(_alerts(found), key=lambda alert: (alert.name, alert.labels))

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
