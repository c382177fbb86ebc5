"""Two real pods, whatever can befall them drawn from a seed, and clients that hear nothing of it.

The deeds are those of tests/chaos, one after the other: a real pod takes half a minute to come back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from random import Random

import pytest
import pytest_asyncio

from tests.chaos.deeds import Kind
from tests.conformance.subject import Subject
from tests.vllm.gateways import Gateway, in_front, until
from tests.vllm.pods import BLOCK_TOKENS, CONTEXT_TOKENS, Pod
from tests.vllm.sayings import SAY, Clients, Heard, clients_of, heard_at, is_steady

pytestmark = pytest.mark.timeout(1500, func_only=True)

SEED = 3

CLIENTS = 4

PATIENCE_S = 400.0
"""Until a deed has been seen to work: a gateway that knows little gives a silent pod some forty seconds."""


@pytest_asyncio.fixture
async def both(pods: tuple[Pod, ...]) -> AsyncIterator[tuple[Gateway, tuple[Pod, ...]]]:
    """A gateway in front of two pods, which are well again afterwards."""
    async with in_front([pod.url for pod in pods]) as gateway:
        try:
            yield gateway, pods
        finally:
            for pod in pods:
                pod.go_on()
                if not pod.is_running:
                    pod.start_again()
                await pod.ready()


@dataclass(slots=True)
class Load:
    """Clients that have one answer after the other, in all APIs."""

    model: str
    clients: Clients
    received: list[tuple[str, Heard]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, number: int) -> None:
        for path in islice(cycle(SAY), number, None):
            if self.ended.is_set():
                return
            received = Heard()
            await SAY[path](self.clients, self.model, received)
            self.received.append((path, received))


def drawn(seed: int) -> Iterator[tuple[Kind, int]]:
    """Each kind of deed once, in some order, to one pod or the other."""
    draw = Random(seed)
    for kind in draw.sample((Kind.KILL_POD, Kind.PAUSE_POD), 2):
        yield kind, draw.randrange(2)


async def do(kind: Kind, pod: Pod, gateway: Gateway) -> None:
    """To a pod that is in the middle of answers; it comes back when nobody waits for it any more."""
    await seen(lambda: running_on(gateway, pod) >= 1, "an answer on the pod")
    is_paused = kind is Kind.PAUSE_POD
    if is_paused:
        pod.pause()
    else:
        pod.kill()
    await seen(lambda: running_on(gateway, pod) == 0, f"after {kind}, no answer on {pod!r}")
    if is_paused:
        pod.go_on()
    else:
        pod.start_again()
        await pod.ready()
    await seen(lambda: gateway.pod(pod.url)["state"] == "ready", f"after {kind}, the pod back")


async def seen(is_so: Callable[[], bool], wanted: str) -> None:
    """Wait for what the gateway tells of itself."""
    await asyncio.to_thread(until, is_so, wanted, PATIENCE_S)


def running_on(gateway: Gateway, pod: Pod) -> int:
    return sum(engine["own_load"]["running"] for engine in gateway.pod(pod.url)["engines"])


async def test_clients_receive_nothing_of_a_pause(both: tuple[Gateway, tuple[Pod, ...]]) -> None:
    """A pod that stands still; that one is killed, test_resume.py and test_pod_loss.py show as well."""
    await receive_nothing(both, [deed for deed in drawn(SEED) if deed[0] is Kind.PAUSE_POD])


@pytest.mark.nightly
async def test_clients_receive_nothing_of_it(both: tuple[Gateway, tuple[Pod, ...]]) -> None:
    """One pod killed, one paused."""
    await receive_nothing(both, list(drawn(SEED)))


async def receive_nothing(both: tuple[Gateway, tuple[Pod, ...]], deeds: Sequence[tuple[Kind, int]]) -> None:
    """Check that every answer meanwhile is whole and the one that an undisturbed pod gives."""
    gateway, pods = both
    model = pods[0].model
    await is_steady(Subject(pods[0].url, model, BLOCK_TOKENS, CONTEXT_TOKENS))
    undisturbed = {path: await heard_at(pods[0].url, model, path) for path in SAY}
    async with clients_of(gateway.url) as clients, asyncio.TaskGroup() as tasks:
        load = Load(model, clients)
        for number in range(CLIENTS):
            tasks.create_task(load.work(number))
        with ExitStack() as done:
            done.callback(load.ended.set)
            for kind, who in deeds:
                await do(kind, pods[who], gateway)
    assert len(load.received) >= CLIENTS
    for path, received in load.received:
        assert received.answer == undisturbed[path].answer, (path, gateway.receipt(received.receipt))
    resumed = [received for _, received in load.received if len(gateway.receipt(received.receipt).pods) > 1]
    assert resumed, "nobody's pod was lost"
    await seen(lambda: gateway.charged() == [], "nothing is charged any more")
