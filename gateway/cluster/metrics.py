"""The metrics port of a supervisor: asks every child at each scrape, and shows them as one gateway.

Parsing takes some ten microseconds per series and child; it happens here, in no process that serves requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.cluster.child import Child
from gateway.cluster.merge import Legacy, Reading, families_of, merged, read_exposition
from gateway.cluster.processes import Team

HERE = "supervisor"


class Counts:
    """What every child last told, and what those left that have gone."""

    def __init__(self) -> None:
        self._latest: dict[Child, Reading] = {}
        self._legacy = Legacy()

    def join(self, child: Child) -> None:
        """A child is at work."""
        self._latest[child] = {}

    def take(self, child: Child, reading: Reading) -> None:
        """A child has told its metrics. One that has gone meanwhile is counted already."""
        if child in self._latest:
            self._latest[child] = reading

    def leave(self, child: Child) -> None:
        """A child has gone: its counts stay."""
        self._legacy.add(self._latest.pop(child, {}))

    def merged(self, own: Reading) -> Iterator[Metric]:
        """All of it. A child that did not answer in time stands with what it told last."""
        by_name = sorted(self._latest.items(), key=lambda each: (len(each[0].name), each[0].name))
        return merged({child.name: reading for child, reading in by_name} | {HERE: own}, self._legacy.families)


class Merged(Collector):
    """One scrape's families."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class OfTeam(Collector):
    """What only the supervisor knows."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def collect(self) -> Iterator[Metric]:
        """Who is at work, and who had to be replaced."""
        yield GaugeMetricFamily("hearth_children", "Processes at work.", len(self._team.children))
        restarts = CounterMetricFamily("hearth_restarts", "Processes that were replaced.", labels=("process",))
        for seat in self._team.seats:
            restarts.add_metric((seat.name,), seat.restarts)
        yield restarts


def own_registry(team: Team) -> CollectorRegistry:
    """The supervisor's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(OfTeam(team))
    return registry


def team_metrics_app(team: Team, counts: Counts, is_stopping: Callable[[], bool]) -> web.Application:
    """The application of the metrics port. Ready means that any worker is."""
    own = own_registry(team)

    async def metrics(request: web.Request) -> web.Response:
        await _scrape(team, counts)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(Merged(counts.merged(families_of(own.collect()))))
        return web.Response(body=body, headers={"content-type": content_type})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        answers = {} if is_stopping() else await team.ask("/ready")
        if any(answer.status == 200 for answer in answers.values()):
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", ready)])
    return app


async def _scrape(team: Team, counts: Counts) -> None:
    """Ask all children; the parsing lets others in between."""
    children = team.children
    for child, answer in zip(
        children, await asyncio.gather(*(child.ask("/metrics") for child in children)), strict=True
    ):
        if answer is not None and answer.status == 200:
            counts.take(child, read_exposition(answer.body.decode()))
            await asyncio.sleep(0)
