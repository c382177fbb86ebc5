"""A picker that goes serves on until those who check its health have acted on its no; nobody else is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from gateway.ext_proc.health import LIVENESS, NOT_SERVING, SERVING, HealthService
from gateway.ext_proc.messages_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.gateway.ext_proc.echoing import echoing
from tests.gateway.ext_proc.speaking import Caller, calling

CHECK = "/grpc.health.v1.Health/Check"
PATIENCE_S = 60.0


@dataclass
class Picker:
    """A port that is asked how it is, and whether it has been told to go."""

    where: str = ""
    is_going: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.health = HealthService(lambda: not self.is_going.is_set())

    def goes(self) -> asyncio.Task[None]:
        """It is told to, and waits."""
        self.is_going.set()
        return asyncio.create_task(self.health.checkers.wait_until_known(PATIENCE_S))


@asynccontextmanager
async def a_picker() -> AsyncIterator[Picker]:
    picker = Picker()
    async with echoing(more=picker.health.services(), on_parted=picker.health.checkers.forget) as port:
        picker.where = port.where
        yield picker


async def ask(caller: Caller, service: str = "readiness") -> int:
    call = await caller.call(CHECK)
    await call.log_event(HealthCheckRequest(service=service).SerializeToString(), ends=True)
    return int(HealthCheckResponse.FromString(await call.message()).status)


async def test_who_was_sent_no_is_waited_for_until_it_retries() -> None:
    """By then it has acted on the first answer: Envoy's checks follow each other."""
    async with a_picker() as picker, calling(picker.where) as one, calling(picker.where) as other:
        assert [await ask(one), await ask(other)] == [SERVING, SERVING]
        waiting = picker.goes()
        assert [await ask(one), await ask(one), await ask(other)] == [NOT_SERVING] * 3
        assert not waiting.done()
        await ask(other)
        await waiting


async def test_who_parts_is_waited_for_no_more() -> None:
    """A probe that asks once and goes, or an Envoy that is stopped as well."""
    async with a_picker() as picker, calling(picker.where) as probe:
        await ask(probe)
        waiting = picker.goes()
        await ask(probe)
        assert not waiting.done()
        probe.writer.close()
        await waiting


async def test_no_one_is_waited_for_who_does_not_ask_whether_to_come() -> None:
    """Who asks whether we live, who has heard before that we are not ready, and who comes when we are going."""
    async with AsyncExitStack() as stack:
        picker = await stack.enter_async_context(a_picker())
        kubelet, reported, one, late = [await stack.enter_async_context(calling(picker.where)) for _ in range(4)]
        await ask(kubelet, LIVENESS)
        await ask(one)
        picker.is_going.set()
        await ask(reported)
        await ask(reported)
        waiting = picker.goes()
        await ask(one)
        await ask(late)
        assert not waiting.done()
        await ask(one)
        await waiting


async def test_a_wait_for_a_client_that_never_calls_again_ends() -> None:
    """A check that comes once a minute."""
    async with a_picker() as picker, calling(picker.where) as seldom:
        await ask(seldom)
        await picker.health.checkers.wait_until_known(0.01)
