"""Builds a gateway from its settings: the one place where everything meets, and where it reads as a list."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gateway.config.redis_place import parse_redis_url
from gateway.config.values import ModelEntry, Settings
from gateway.discovery.file import WatchedFile
from gateway.discovery.source import Source
from gateway.discovery.sources import Means, asked_sources
from gateway.discovery.static import Static
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.pushed import Pushed
from gateway.fleet.watcher import Watcher
from gateway.host import Host
from gateway.identity.issuer import Issuer
from gateway.identity.keyring import Keyring
from gateway.ladders.at_work import served_ladders
from gateway.ladders.exposition import CascadeExposition, CascadeTallies
from gateway.ladders.ladders import Ladders
from gateway.lines import STDOUT, LineWriter
from gateway.log import EventLog, OutcomeLog, request_line, usage_line
from gateway.metrics.calibration import Calibration
from gateway.metrics.discovery import SourcesExposition
from gateway.metrics.exposition import Gauges, make_registry
from gateway.metrics.retries import RetriesExposition
from gateway.metrics.sharing import SharingExposition
from gateway.metrics.tallies import Tallies
from gateway.metrics.tiers import TierExposition, TierTallies, waiting_in
from gateway.others import Others
from gateway.pairs.at_work import make_pairs
from gateway.pairs.exposition import PairTallies
from gateway.proxy.client.front import Front
from gateway.quotas.expecting import Expecting
from gateway.quotas.exposition import LimitsExposition
from gateway.quotas.host_lender import HostLender
from gateway.quotas.keeper import Keeper
from gateway.quotas.lender import Lender
from gateway.quotas.quotas import Quotas
from gateway.receipts import Receipts
from gateway.recording import RouteRecorder, shared_key
from gateway.roles.making import keep_roles, make_canaries
from gateway.spine.passage import Passage
from gateway.spine.patience import Patience
from gateway.spine.room import Room
from gateway.tls import listener_tls
from gateway.warmth.asking import Asking, AskingExposition
from gateway.warmth.client import WarmthClient
from gateway.warmth.sharing import Sharing
from gateway.warmth.wire import Hello
from routing.router import Router
from routing.warmth import WarmIndex
from tenancy.admission import Admission
from tenancy.document import Fault, Invalid
from tenancy.forecast import Forecast
from tenancy.policy import Policy

if TYPE_CHECKING:
    from gateway.extproc.at_work import EnvoyShell

FROZEN_S = 5.0
"""A stream of a pod that no longer listens is cut after so long without a byte: vLLM that was told to stop at once
freezes what runs, for good; told to drain it goes on sending."""


ALONE = Host()


@dataclass(slots=True)
class PodKeys:
    """The key that pods want, for all of them the same."""

    key: str | None

    def __call__(self, url: str) -> str | None:
        return self.key


@dataclass(slots=True)
class Life:
    """Whether the gateway is on its way out."""

    is_stopping: bool = False


@dataclass(slots=True)
class Gateway:
    """All parts of one gateway. A reload puts new values into some of them; see `reload.py`."""

    settings: Settings
    life: Life
    say: EventLog
    logs: dict[str, OutcomeLog]
    prices: dict[str, ModelEntry]
    pod_keys: PodKeys
    keyring: Keyring
    tls: ssl.SSLContext | None
    router: Router
    receipts: Receipts
    tallies: Tallies
    probes: aiohttp.ClientSession
    static: Static
    pod_file: WatchedFile | None
    watcher: Watcher
    passage: Passage
    room: Room
    quotas: Quotas
    ladders: Ladders
    front: Front
    registry: CollectorRegistry
    others: Others
    background: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """What runs until it is cancelled, while the gateway does."""
    warmth: WarmthClient | None = None
    """The warmth process of the host, where there is one."""
    sharing: Sharing | None = None
    """What is told to other gateways and heard from them, where there may be others."""
    asking: Asking | None = None
    """Exact warmth, where it is wanted."""
    envoy: EnvoyShell | None = None
    """Where Envoy sends us requests, if it does."""

    def is_ready(self) -> bool:
        """Whether new requests are welcome."""
        return not self.life.is_stopping and self.watcher.is_ready()


def build(settings: Settings, policy: Policy | None, host: Host = ALONE) -> Gateway:
    """Everything that a gateway is made of. Opens files, but no port. Raises `Invalid`."""
    clock, draw = asyncio.get_running_loop().time, random.Random().random  # noqa: S311 - breaks ties, keeps no secret
    tls, prices = listener_tls(settings.tls) if settings.tls else None, dict(settings.model_table)
    pod_keys = PodKeys(settings.pod_api_key.value if settings.pod_api_key else None)
    life, receipts, others = Life(), Receipts(), Others()
    say, logs = _open_logs(settings, prices, host)
    router = Router(settings.routing.scorers, index=WarmIndex(most_blocks_per_engine=settings.routing.most_blocks))
    calibration = Calibration(lambda: {pod.url for pod in router.fleet.pods}, say)
    tallies = Tallies(lambda model: router.fleet.knows(model) or model in prices, judge=calibration.judge)
    tiers, probes = TierTallies(router.fleet), probe_session()
    issuer = Issuer(probes, say=say, clock=clock)
    keyring = Keyring(None, issuer, time.time)
    static, pod_file = Static(settings.static_pods), WatchedFile(file, say) if (file := settings.pod_file) else None
    means = Means(say, clock, draw, Pushed(router, clock).take)
    sources: list[Source] = [static, *filter(None, [pod_file]), *asked_sources(settings, means)]
    watcher = Watcher(router, sources, Prober(probes, pod_keys), say=say, clock=clock, draw=draw, models=prices)
    room = Room(router, clock=clock, draw=draw, no_pod_s=settings.timeouts.no_pod_s)
    quotas = _make_quotas(router, prices, room, clock, draw)
    pairs, paired = make_pairs(router, probes, prices, clock=clock, say=say), PairTallies()
    ladders, climbs = Ladders(router, served_ladders(prices), draw=draw, clock=clock), CascadeTallies()
    canaries = make_canaries(settings.canaries, router, say, clock)
    witnesses = [each.witness for each in (tallies, tiers, climbs, paired, canaries, receipts)]
    passage = Passage(
        router,
        health=watcher.take_end,
        witnesses=[*witnesses, *(log.witness for log in logs.values())],
        clock=clock,
        wall_clock=time.time,
        draw=draw,
        patience=_patience(settings),
        reserve=quotas.reserve,
        room=room,
        pairs=pairs,
    )
    front = Front(
        passage,
        router,
        keyring.identify,
        pod_keys,
        settings.limits,
        settings.timeouts,
        lambda: not life.is_stopping and watcher.is_ready(),
        ladders=ladders,
        trusted=settings.trusted_proxies,
        on_refused=lambda refused: tallies.count_early(refused.reason),
    )
    shown: list[Collector] = [calibration, SourcesExposition(watcher.census, clock), LimitsExposition(quotas), paired]
    shown += [TierExposition(tiers, router.fleet, waiting_in(room)), CascadeExposition(climbs, ladders), canaries]
    registry = _make_registry(tallies, router, watcher, front, logs, others, *shown)
    parts = (tls, router, receipts, tallies, probes, static, pod_file, watcher, passage, room, quotas, ladders)
    gateway = Gateway(settings, life, say, logs, prices, pod_keys, keyring, *parts, front, registry, others)
    _heed_silence(gateway)
    put_policy(gateway, policy)
    gateway.background += [issuer.run, canaries.run]
    keep_roles(gateway, host)
    _serve_envoy(gateway, host)
    if host.warmth is not None:
        _connect(gateway, WarmthClient(host.warmth, Hello(secrets.randbits(63), host.number), say=say, draw=draw))
    return gateway


def _patience(settings: Settings) -> Patience:
    timeouts = settings.timeouts
    return Patience(timeouts.first_byte_s, timeouts.resume_s, settings.retries, settings.processes)


def _heed_silence(gateway: Gateway) -> None:
    """What is done about pods that say nothing, and about whoever has to be asked again therefore."""
    front = gateway.front
    front.pool.bear(gateway.settings.stalls)
    gateway.watcher.on_gone(lambda url: front.cut_silent(url, FROZEN_S))
    gateway.registry.register(RetriesExposition(gateway.passage.budget, front.pool.lateness.found))


def _serve_envoy(gateway: Gateway, host: Host) -> None:
    """The shell behind Envoy, where it is wanted."""
    words = gateway.settings.extproc
    if words is None:
        return
    from gateway.extproc.at_work import EnvoyShell  # noqa: PLC0415 - protobuf takes six megabytes

    gateway.envoy = EnvoyShell(
        gateway.settings,
        words,
        gateway.front,
        gateway.router,
        gateway.pod_keys,
        is_ready=gateway.is_ready,
        take_end=gateway.watcher.take_end,
        number=host.number,
    )
    gateway.registry.register(gateway.envoy.exposition)
    gateway.background.extend(gateway.envoy.renewing(gateway.say))


def put_policy(gateway: Gateway, policy: Policy | None) -> None:
    """Have a gateway go by a policy, its first or another; who is being served keeps what it came under."""
    gateway.keyring.policy = policy
    if policy is None:
        return
    gateway.front.heed_headers(policy.headers.names)
    if gateway.room.admission is None:  # Without a policy nothing is promised, and nothing need be watched for it.
        gateway.room.admit_by(Admission(gateway.router))
    if gateway.room.admission is not None:
        gateway.room.admission.tiers = policy.tiers


def _make_quotas(
    router: Router,
    prices: Mapping[str, ModelEntry],
    room: Room,
    clock: Callable[[], float],
    draw: Callable[[], float],
) -> Quotas:
    seconds_to_epoch = time.time() - clock()
    return Quotas(
        Expecting(router, Forecast(), prices),
        clock=lambda: clock() + seconds_to_epoch,
        draw=draw,
        is_under_load=lambda: room.is_crowded,
    )


def _connect(gateway: Gateway, client: WarmthClient) -> None:
    """What a worker does with the warmth process of its host."""
    gateway.warmth = client
    gateway.background.append(client.run)
    sharing = gateway.sharing = Sharing(
        gateway.router,
        client,
        say=gateway.say,
        clock=asyncio.get_running_loop().time,
        fleet_known=gateway.watcher.has_looked,
    )
    gateway.others.hearing = sharing.hearing
    gateway.background.append(sharing.run)
    gateway.registry.register(SharingExposition(sharing))
    _share_limits(gateway, client)
    words = gateway.settings.kv_events
    if words is not None:
        asking = gateway.asking = Asking(client, gateway.router, wait_s=words.wait_ms / 1000)
        gateway.front.look_with(asking.look)
        gateway.background.append(asking.run)
        gateway.registry.register(AskingExposition(asking.ends))


def _share_limits(gateway: Gateway, client: WarmthClient) -> None:
    """With the gateways of all hosts by way of Redis, or with the other workers by way of the warmth process."""
    settings, draw = gateway.settings, random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
    lender: Lender
    if settings.redis is not None:
        from gateway.quotas.redis_lender import RedisLender  # noqa: PLC0415 - redis-py takes ten megabytes

        lender = RedisLender(parse_redis_url(settings.redis.value), say=gateway.say, draw=draw)
    elif settings.processes > 1:
        lender = HostLender(client)
    else:
        return
    keeper = gateway.quotas.keeper = Keeper(
        lender,
        who=secrets.token_hex(8),
        processes=settings.processes,
        books=lambda: gateway.quotas.books,
        clock=gateway.quotas.now_s,
        say=gateway.say,
    )
    gateway.background.append(keeper.run)


def _open_logs(
    settings: Settings, prices: Mapping[str, ModelEntry], host: Host
) -> tuple[EventLog, dict[str, OutcomeLog]]:
    stdout = LineWriter(STDOUT, lock=host.lock("stdout"))
    say = EventLog(stdout, settings.log_level, **({"worker": host.number} if host.number else {}))
    logs = {"requests": OutcomeLog(stdout, partial(request_line, level=lambda: say.level))}
    if settings.usage_log:
        logs["usage"] = OutcomeLog(_writer("usage", settings.usage_log, host), partial(usage_line, prices=prices))
    if settings.route_log:
        writer = _writer("route", settings.route_log, host)
        logs["route"] = OutcomeLog(writer, RouteRecorder(shared_key(host.folder)))
    return say, logs


def _make_registry(
    tallies: Tallies,
    router: Router,
    watcher: Watcher,
    front: Front,
    logs: Mapping[str, OutcomeLog],
    others: Others,
    *shown: Collector,
) -> CollectorRegistry:
    gauges = Gauges(
        router=router,
        pods=lambda: watcher.pods,
        open_requests=lambda: front.open_requests,
        open_connections=lambda: front.open_connections,
        dropped_lines=lambda: {name: log.writer.dropped_lines for name, log in logs.items()},
        clock=asyncio.get_running_loop().time,
        theirs=others.load,
        tasks=lambda: len(asyncio.all_tasks()),
    )
    registry = make_registry(tallies, gauges)
    for each in shown:
        registry.register(each)
    return registry


def _writer(name: str, path: Path, host: Host) -> LineWriter:
    try:
        return LineWriter(path, lock=host.lock(name))
    except OSError as error:
        raise Invalid([Fault(f"{name}_log", f"cannot write `{path}`: {error.strerror}")]) from None
