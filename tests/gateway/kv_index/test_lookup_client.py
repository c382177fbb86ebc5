"""A worker, the index process and an engine that tells of its cache: what is seen is what the engine would reuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import generate_latest

from gateway.config.kv_events import KvEventsConfig
from gateway.kv_index import lookup_service as sights_module
from gateway.kv_index.event_feed import EventFeed
from gateway.kv_index.lookup_client import LATE_IN_A_ROW, CacheLookupClient, LookupMetrics
from gateway.kv_index.lookup_service import CacheLookupService
from gateway.replica_sync.host_client import IndexProcessClient
from gateway.replica_sync.ipc_messages import FollowedEngines, Hello
from routing.decision.router import Router
from routing.pods import EngineShape, ModelCard, Pod, PodState
from routing.precise.event_reliability import MIN_AGREEMENTS
from routing.reading import read_request
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tests.gateway.fake_pod import Pulse
from tests.gateway.kv_index.exchange import Host, Said, host, until
from tests.gateway.kv_index.publisher import Publisher
from tests.gateway.kv_index.tokenizing import tokens_of
from tests.routing.kv_model import ModelEngine

BLOCK = 16
MODEL = "m"


@dataclass
class Scene:
    """One pod with one engine behind a publisher, one worker, one index process."""

    host: Host
    publisher: Publisher
    engine: ModelEngine
    router: Router
    asking: CacheLookupClient
    url: str
    pod: dict[str, Any]
    """What the pod answers: its event sources, and its tokens where they are not those of the messages."""
    pulse: Pulse
    """Beats when the worker is told whom the process follows, and when it has connected."""

    def body(self, text: str) -> bytes:
        stated = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        return msgspec.json.encode(stated)

    async def look(self, text: str) -> Request:
        body = self.body(text)
        return await self.asking.look_up(read_request(Api.CHAT, body, request_id=text[:8]).request, body)

    async def ask(self, text: str) -> tuple[Request, int]:
        """A whole request: looked at, placed, computed, settled. Returns it with what was really reused."""
        request = await self.look(text)
        placement = self.router.place(request, avoid=frozenset(), now_s=0.0, draw=0.0)
        tokens = self.tokens(text)
        hit = self.engine.hit_tokens(tokens)
        running = self.engine.begin(tokens)
        assert running is not None
        await self.tell()
        placement.first_token(1.0)
        self.engine.end(running)
        placement.settle(Usage(len(tokens), 1, hit), 2.0)
        placement.release(2.0)
        if request.lookup is not None:
            request.lookup.listener.over()
        return request, hit

    async def tell(self) -> None:
        """What the engine has to say, until it is heard."""
        events = self.engine.reported()
        number = await self.publisher.log_event(*events) if events else -1
        async with asyncio.timeout(120):
            while events and self.feed._next <= number:
                await self.look("x")

    async def is_heard(self) -> None:
        """All that the worker has told the process so far: an answer comes behind it, events may come before it."""
        await self.look("x")

    @property
    def answering(self) -> CacheLookupService:
        sights = self.host.warmth.lookups
        assert sights is not None
        return sights

    @property
    def feed(self) -> EventFeed:
        return self.answering.subscriptions.feeds[self.url]

    def tokens(self, text: str) -> list[int]:
        """As the pod's tokenizer has them."""
        return tokens_of([{"role": "user", "content": text}])

    async def until_exact(self) -> None:
        """The worker knows that events decide."""
        await self.pulse.until(lambda: self.asking.reasons.get(self.url) == "")

    def seen(self, request: Request) -> int | None:
        if request.lookup is None:
            return None
        (slot,) = self.router.fleet.eligible(MODEL).slots
        found = request.lookup.hits.get(slot)
        return found.tokens if found else 0 if slot in request.lookup.reliable_slots else None


@asynccontextmanager
async def scene(folder: Path, *, max_wait_s: float = 30.0, events: bool = True) -> AsyncIterator[Scene]:
    """All of it, on this machine's own sockets."""
    words: dict[str, Any] = {"kv_events": KvEventsConfig(max_wait_s=max_wait_s)}
    pod: dict[str, Any] = {"sources": {}}
    async with Publisher() as publisher, serving(pod) as url, host(folder / "host", **words) as started:
        if events:
            reported = {"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint, "topic": "kv"}
            pod["sources"] = {"0": {"enable_kv_cache_events": True, "publisher": "zmq", **reported}}
        router = Router(routings()["warm"])
        cards = (ModelCard(MODEL),)
        router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), cards=cards, ready_since_s=-1e6))
        router.reshape_pod(url, [EngineShape(kv_tokens=10_000, block_tokens=BLOCK)])
        client = IndexProcessClient(started.where, Hello(1), log_event=Said(), draw=lambda: 0.0)
        asking = CacheLookupClient(client, router, wait_s=max_wait_s)
        pulse = Pulse()

        def take_followed(followed: FollowedEngines) -> None:
            asking._take_followed(followed)
            pulse.beat()

        client.on(FollowedEngines, take_followed)
        client.on_connected(pulse.beat)
        tasks = [asyncio.create_task(client.run()), asyncio.create_task(asking.run())]
        try:
            await pulse.until(lambda: client.is_connected)
            if events:
                await publisher.subscribed()
            yield Scene(started, publisher, ModelEngine(12, BLOCK, secret=5), router, asking, url, pod, pulse)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serving(pod: dict[str, Any]) -> AsyncIterator[str]:
    """A pod that tells where it publishes, and what a prompt is in tokens."""

    async def sources(_: web.Request) -> web.Response:
        return web.json_response(pod["sources"])

    async def tokenize(request: web.Request) -> web.Response:
        pod["asked"] = await request.json()
        tokens = pod.get("tokens") or tokens_of(pod["asked"]["messages"])
        return web.json_response({"tokens": tokens}, status=pod.get("status", 200))

    app = web.Application()
    app.add_routes([web.get("/kv_event_sources", sources), web.post("/tokenize", tokenize)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


TALK = "sea ship captain storm island " * 8


async def test_what_is_observed_is_what_the_engine_reuses(tmp_path: Path) -> None:
    """Turn for turn, through evictions, a reset and a restart."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        texts = [TALK, TALK + "and then", "def return " * 20, TALK, "1234 " * 40, TALK + "and then what", TALK]
        for turn, text in enumerate(texts * 3):
            if turn == 9:
                await one.is_heard()
                one.engine.reset()
                await one.tell()
            request, hit = await one.ask(text)
            assert request.lookup is not None
            assert request.lookup.prompt_tokens == len(one.tokens(text))
            assert one.seen(request) == hit
        assert one.asking.outcomes["precise"] >= len(texts) * 3


async def test_siblings_find_what_the_first_will_leave_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any event: the second of two that come at once is told what the first is about to compute."""
    monkeypatch.setattr(sights_module, "SIBLING_WAIT_S", 30.0)
    async with scene(tmp_path) as one:
        await one.until_exact()
        request = await one.look(TALK)
        assert one.seen(request) == 0
        second = asyncio.create_task(one.look(TALK + "and more"))
        await until(lambda: len(one.answering._tickets) == 2)
        placement = one.router.place(request, avoid=frozenset(), now_s=0.0, draw=0.0)
        sibling = await second
        assert (one.seen(sibling) or 0) >= 32
        placement.release(1.0)
        for each in (request, sibling):
            assert each.lookup is not None
            each.lookup.listener.over()
        assert one.seen(await one.look(TALK + "and more")) == 0


async def test_what_was_computed_is_known_before_its_events_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine tells of a prompt a little after it has answered it: who asks in between finds it all the same."""
    monkeypatch.setattr(sights_module, "EVENTS_WITHIN_S", 3600.0)
    async with scene(tmp_path) as one:
        await one.until_exact()
        request = await one.look(TALK)
        placement = one.router.place(request, avoid=frozenset(), now_s=0.0, draw=0.0)
        tokens = one.tokens(TALK)
        running = one.engine.begin(tokens)
        assert running is not None
        placement.settle(Usage(len(tokens), 1, 0), 1.0)
        placement.release(1.0)
        assert request.lookup is not None
        request.lookup.listener.over()
        hit = one.engine.hit_tokens(tokens)
        assert one.seen(await one.look(TALK)) == hit > 0
        await one.tell()
        assert one.seen(await one.look(TALK)) == hit


async def test_whom_to_believe_is_known_with_every_answer(tmp_path: Path) -> None:
    """An engine that has just lost our trust, or its cache, is not taken for one that holds nothing."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        await one.ask(TALK)
        await one.is_heard()
        one.feed._lose()
        assert one.seen(await one.look(TALK)) is None
        one.feed._mark_reliable()
        request, hit = await one.ask(TALK)
        assert one.seen(request) == hit > 0
        one.publisher._buffer.clear()
        one.router.clear_caches(one.url)
        # Nothing is known until the engine has been asked what it has said so far; then, that it is empty.
        assert one.seen(await one.look(TALK)) in (None, 0)


async def test_no_one_followed_costs_nothing(tmp_path: Path) -> None:
    """Pods without events are not asked about."""
    async with scene(tmp_path, events=False) as one:
        assert (await one.look(TALK)).lookup is None
        assert one.asking.outcomes == {"no_engine_followed": 1}


async def test_a_late_answer_is_not_waited_for(tmp_path: Path) -> None:
    """The shadow cache decides, it is counted, and nobody remembers the question: no sibling waits for it."""
    async with scene(tmp_path, max_wait_s=0.0) as one:
        await one.until_exact()
        assert (await one.look(TALK)).lookup is None
        assert one.asking.outcomes == {"timeout": 1}
        assert not one.asking._waiting
        one.asking._wait_s = 20.0
        # An answer comes behind all that was said before its question: the first one has reached the process by then.
        later = await one.look(TALK)
        assert later.lookup is not None
        later.lookup.listener.over()
        requested = one.answering
        await until(lambda: not (requested._tasks or requested._tickets or requested._newest or requested._pending))


async def test_who_is_always_late_is_not_called_every_time(tmp_path: Path) -> None:
    """An index process that hangs costs a few requests their wait, not all; a single question finds it well again."""
    async with scene(tmp_path, max_wait_s=0.0) as one:
        await one.until_exact()
        for _ in range(LATE_IN_A_ROW + 1):
            await one.look(TALK)
        assert (await one.look(TALK)).lookup is None
        assert one.asking.outcomes == {"timeout": LATE_IN_A_ROW + 1, "paused_after_timeouts": 1}
        one.asking._wait_s, one.asking._probe_at_s = 20.0, 0.0
        assert (await one.look(TALK)).lookup is not None
        assert (await one.look(TALK)).lookup is not None


async def test_a_dead_index_process_is_missed_and_comes_back(tmp_path: Path) -> None:
    """Requests go on at once; when it is there again it learns the past from the engine itself."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        await one.ask(TALK)
        settings = one.host.warmth.settings
        await one.host.stop()
        client = one.asking._client
        async with asyncio.timeout(120):
            while client.is_connected:
                await one.look(TALK)
        assert (await one.look(TALK)).lookup is None
        assert one.asking.outcomes["index_unreachable"] >= 1
        one.host.start(settings)
        await one.pulse.until(lambda: client.is_connected)
        await one.publisher.subscribed()
        await one.until_exact()
        request, hit = await one.ask(TALK)
        assert one.seen(request) == hit > 0


async def test_a_wrong_tokenizer_is_found_out(tmp_path: Path) -> None:
    """Engines that count prompts otherwise, again and again: the shadow caches decide, and one line says so."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        for _ in range(8):
            request = await one.look(TALK)
            assert request.lookup is not None
            placement = one.router.place(request, avoid=frozenset(), now_s=0.0, draw=0.0)
            placement.settle(Usage(7, 1, 0), 1.0)
            placement.release(1.0)
        async with asyncio.timeout(120):
            while (await one.look(TALK)).lookup is not None:
                pass
        assert one.asking.outcomes["wrong_tokenizer"] >= 1


async def test_an_unreliable_engine_is_left_out_and_heals(tmp_path: Path) -> None:
    """A lost batch that nobody repeats: its shadow decides until what is foretold comes true again."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        one.publisher._buffer.clear()
        await one.ask("def return " * 20)
        await one.publisher.log_event(lost=True)
        one.publisher._buffer.clear()
        await one.ask(TALK)
        await one.pulse.until(lambda: one.asking.reasons.get(one.url) == "gap")
        assert one.seen(await one.look(TALK)) is None
        for _ in range(2 * MIN_AGREEMENTS):
            await one.ask(TALK)
        await one.until_exact()
        request, hit = await one.ask(TALK)
        assert one.seen(request) == hit > 0


async def test_the_pod_is_the_tokenizer(tmp_path: Path) -> None:
    """It is asked what the client asked, and its tokens are the prompt."""
    async with scene(tmp_path) as one:
        one.pod["tokens"] = list(range(40))
        await one.until_exact()
        request = await one.look(TALK)
        assert request.lookup is not None
        assert request.lookup.prompt_tokens == 40
        assert one.pod["asked"]["messages"] == [{"role": "user", "content": TALK}]
        assert one.pod["asked"]["add_generation_prompt"] is True
        one.pod["status"] = 500
        assert (await one.look(TALK)).lookup is None
        assert one.asking.outcomes["upstream_rejected"] == 1


@pytest.mark.parametrize("api", [Api.EMBEDDINGS, Api.TOKENIZE])
async def test_what_generates_nothing_is_not_checked(tmp_path: Path, api: Api) -> None:
    """It leaves no KV behind that anybody would tell of."""
    async with scene(tmp_path, events=False) as one:
        request = Request("r", api, MODEL)
        assert await one.asking.look_up(request, b"{}") is request
        assert not one.asking.outcomes


async def test_metrics_report_who_decides(tmp_path: Path) -> None:
    """How questions ended, whom we follow, how much they hold."""
    async with scene(tmp_path) as one:
        await one.until_exact()
        await one.ask(TALK)
        page = generate_latest(one.host.registry).decode()
        assert f'hearth_engine_kv_events_active{{dp_rank="0",upstream="{one.url}"}} 1.0' in page
        assert f'hearth_kv_event_gaps_total{{dp_rank="0",upstream="{one.url}"}} 0.0' in page
        (family,) = LookupMetrics(one.asking.outcomes).collect()
        assert {sample.labels["result"] for sample in family.samples} >= {"precise"}
