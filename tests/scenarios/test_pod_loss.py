"""One of three pods is lost under load: nobody who has no first byte yet notices, and the pod comes back slowly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from simulator.app import Received
from simulator.faults import Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from tests.gateway.kv_index.redis_servers import free_ports
from tests.gateway.running import Running, serving

PODS = 3
CHAT = "/v1/chat/completions"
CLIENTS = 15

PACE = Profile(step_base_s=0.005, prefill_tokens_per_s=4000)
"""Some tenths of a second per answer, so that every pod holds requests before and after their first token."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer as its client saw it."""

    status: int
    had_begun: bool
    is_whole: bool
    text: str


@dataclass
class Load:
    """Clients that ask, one request after the other, until told to stop."""

    url: str
    seen: list[Seen] = field(default_factory=list)
    is_over: bool = False
    wanted: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, session: aiohttp.ClientSession, number: int) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            self.seen.append(await ask(session, self.url, f"client {number} turn {turn} " + f"{number} " * 200))
            if len(self.seen) >= self.wanted:
                self.reached.set()

    async def goes_on(self, more: int) -> None:
        """So many more answers have come."""
        self.wanted = len(self.seen) + more
        self.reached.clear()
        async with asyncio.timeout(120):
            await self.reached.wait()


async def ask(session: aiohttp.ClientSession, url: str, words: str) -> Seen:
    body = {"model": "tiny", "stream": True, "max_tokens": 30, "messages": [{"role": "user", "content": words}]}
    text = ""
    try:
        async with session.post(url + CHAT, json=body) as answer:
            try:
                async for chunk, _ in answer.content.iter_chunks():
                    text += chunk.decode()
            except aiohttp.ClientError as error:
                return Seen(answer.status, bool(text), False, f"{text[-300:]} {error!r}")
            is_whole = answer.status == 200 and text.rstrip().endswith("[DONE]") and '"error"' not in text
            return Seen(answer.status, answer.status == 200 and bool(text), is_whole, text[-300:])
    except aiohttp.ClientError as error:
        return Seen(0, False, False, repr(error))


@asynccontextmanager
async def loaded() -> AsyncIterator[tuple[Running, list[SimulatedPod], Load]]:
    """A gateway before three pods, with clients at work on all of them."""
    async with AsyncExitStack() as stack:
        options = Options(models=("tiny",), min_answer_tokens=30, max_answer_tokens=30, profile=PACE)
        pods = [await stack.enter_async_context(SimulatedPod(options, port=port)) for port in free_ports(PODS)]
        flags = [word for pod in pods for word in ("--pod", pod.url)]
        gateway = await stack.enter_async_context(serving(*flags))
        for _ in pods:
            await gateway.until("pod_state_changed", state="ready")
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        load = Load(gateway.at("traffic"))
        tasks = [asyncio.create_task(load.client(session, number)) for number in range(CLIENTS)]
        await load.goes_on(CLIENTS)
        assert all(map(last_asked, pods))
        try:
            yield gateway, pods, load
        finally:
            load.is_over = True
            await asyncio.gather(*tasks)


async def fleet(gateway: Running) -> dict[str, dict[str, object]]:
    """Pods by URL, as the admin port shows them."""
    async with aiohttp.ClientSession() as session, session.get(gateway.at("admin", "/fleet")) as answer:
        return {pod["url"]: pod for pod in (await answer.json())["pods"]}


def last_asked(pod: SimulatedPod) -> Received | None:
    """The last request that a client had of this pod; probes are none."""
    return next((request for request in reversed(pod.received) if request.path == CHAT), None)


def nobody_without_a_first_byte_failed(seen: list[Seen]) -> None:
    failed = [answer for answer in seen if not answer.is_whole and not answer.had_begun]
    assert not failed, failed[:3]


@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.FREEZE, FaultKind.CRASH])
async def test_a_lost_pod_fails_nobody_who_has_no_first_byte(kind: FaultKind) -> None:
    """However it is lost; its breaker opens, the others go on, and what comes back comes back slowly."""
    async with loaded() as (gateway, pods, load):
        lost, *others = pods
        lost.set_fault(Fault(kind))
        await gateway.until("breaker_opened", upstream=lost.url)
        await load.goes_on(3 * CLIENTS)
        assert (await fleet(gateway))[lost.url]["state"] in ("open_circuit", "unready")
        before = len(load.seen)
        await load.goes_on(CLIENTS)
        assert all(answer.is_whole for answer in load.seen[before:])

        await lost.stop()
        await lost.start()
        await gateway.until("pod_state_changed", state="ready", upstream=lost.url)
        shown = await fleet(gateway)
        assert shown[lost.url]["ready_for_s"] is not None
        assert all(shown[pod.url]["ready_for_s"] is None for pod in others)
        await load.goes_on(5 * CLIENTS)
        assert last_asked(lost)
    nobody_without_a_first_byte_failed(load.seen)


async def test_a_drained_pod_fails_nobody_at_all() -> None:
    """What runs there finishes, nothing new comes, and undrained it is used again."""
    async with loaded() as (gateway, pods, load), aiohttp.ClientSession() as session:
        drained = pods[0]
        async with session.post(gateway.at("admin", "/pods/drain"), json={"pod": drained.url}) as answer:
            assert (await answer.json())["state"] == "draining"
        await load.goes_on(2 * CLIENTS)
        last = last_asked(drained)
        await load.goes_on(2 * CLIENTS)
        assert last_asked(drained) is last
        async with session.post(gateway.at("admin", "/pods/undrain"), json={"pod": drained.url}) as answer:
            assert (await answer.json())["state"] == "ready"
        await load.goes_on(3 * CLIENTS)
        assert last_asked(drained) is not last
    assert all(answer.is_whole for answer in load.seen)


async def test_a_pod_that_says_it_is_not_ready_fails_nobody() -> None:
    """As Kubernetes' probes see it: /health says 503, what runs goes on."""
    async with loaded() as (gateway, pods, load):
        pods[0].set_fault(Fault(FaultKind.UNREADY))
        await gateway.until("pod_state_changed", state="unready", upstream=pods[0].url)
        last = last_asked(pods[0])
        await load.goes_on(2 * CLIENTS)
        assert last_asked(pods[0]) is last
    assert all(answer.is_whole for answer in load.seen)
