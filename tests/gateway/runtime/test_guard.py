"""No exception ends what repeats: every endless task and every timer of the gateway goes on and reports it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from gateway.cluster.channel import (
    ApplyConfig,
    ApplyEffects,
    ConfigApplied,
    ControlChannel,
    ReopenLogs,
    SetDrained,
    _follow,
)
from gateway.diagnosis.effects import FindingEffects
from gateway.http.timeout_sweeper import TimeoutSweeper
from gateway.observe.request_log import OutcomeLog
from gateway.runtime.guard import LOOP_CONTEXT_KEY, PeriodicTimer, call_guarded, report_exception, restarted
from simulator.clock import run_virtually
from tests.gateway.samples import an_outcome
from tests.sources import Source, parse, read_sources


class Planted(Exception):  # noqa: N818 - a name, not a kind of error
    """What the tests throw."""


class Broken:
    """Raises whatever is done with it, and counts how often."""

    def __init__(self) -> None:
        self.__dict__["raised"] = 0

    def _raise(self) -> Any:
        self.__dict__["raised"] += 1
        raise Planted

    def __getattr__(self, name: str) -> object:
        return self._raise()

    def __call__(self, *_: object, **__: object) -> Any:
        return self._raise()


def caught_in(loop: asyncio.AbstractEventLoop) -> Counter[str]:
    """Counts from now on what is reported to the loop, by name."""
    counts: Counter[str] = Counter()

    def count(_: object, context: dict[str, Any]) -> None:
        counts[context.get(LOOP_CONTEXT_KEY, f"unguarded: {context}")] += 1

    loop.set_exception_handler(count)
    return counts


def endless() -> Iterator[Callable[..., Awaitable[None]]]:
    """All functions of the gateway that are started again when they raise."""
    for source in read_sources("gateway", "agent"):
        if "@restarted(" not in source.text:
            continue
        module = import_module(str(source.path.with_suffix("")).replace("/", "."))
        for owner in (module, *(one for _, one in inspect.getmembers(module, inspect.isclass))):
            for held in vars(owner).values():
                if hasattr(held, "restarted_as") and held.__module__ == module.__name__:
                    yield held


ENDLESS = sorted(set(endless()), key=lambda one: f"{one.__module__}.{one.__qualname__}")


@pytest.mark.parametrize("loop_of", ENDLESS, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_every_endless_task_goes_on_after_exceptions(loop_of: Callable[..., Awaitable[None]]) -> None:
    """Whatever one of them touches raises: it tries again and again, and neither ends nor spins."""

    async def play() -> int:
        caught_in(asyncio.get_running_loop())
        broken = Broken()
        task = asyncio.create_task(_called(loop_of, broken))
        await asyncio.sleep(120.0)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return int(broken.__dict__["raised"])

    assert 3 <= run_virtually(play()) < 10_000


async def _called(loop_of: Callable[..., Awaitable[None]], broken: Broken) -> None:
    needed = [one for one in inspect.signature(loop_of).parameters.values() if one.default is inspect.Parameter.empty]
    named = {one.name: broken for one in needed if one.kind is inspect.Parameter.KEYWORD_ONLY}
    await loop_of(*[broken] * (len(needed) - len(named)), **named)


def test_a_restarted_task_ends_when_it_returns_and_when_it_is_cancelled() -> None:
    """Only exceptions begin it again."""

    async def play() -> tuple[int, Counter[str]]:
        counts, times = caught_in(asyncio.get_running_loop()), 0

        @restarted("here")
        async def fails_twice() -> None:
            nonlocal times
            times += 1
            if times < 3:
                raise Planted

        @restarted("there")
        async def waits() -> None:
            await asyncio.Event().wait()

        await fails_twice()
        waiting = asyncio.create_task(waits())
        await asyncio.sleep(1.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return times, counts

    assert run_virtually(play()) == (3, Counter(here=2))


def test_a_ticker_rings_on_after_exceptions_and_stops_when_it_is_not_wanted() -> None:
    """It is set again after every ring, whatever its callback did."""

    async def play() -> tuple[list[float], Counter[str]]:
        loop = asyncio.get_running_loop()
        counts, rung = caught_in(loop), list[float]()

        def tick() -> None:
            rung.append(loop.time())
            raise Planted

        ticker = PeriodicTimer("here", 0.5, tick, lambda: len(rung) < 4)
        ticker.start()
        ticker.start()
        await asyncio.sleep(10.0)
        ticker.start()
        ticker.stop()
        await asyncio.sleep(10.0)
        return rung, counts

    assert run_virtually(play()) == ([0.5, 1.0, 1.5, 2.0], Counter(here=4))


def test_outside_a_loop_exceptions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Where no loop runs there is no handler to report to."""
    with caplog.at_level(logging.ERROR):
        assert not call_guarded("here", Broken())
        report_exception("there", Planted())
    assert [record.message for record in caplog.records] == ["exception in here", "exception in there"]
    assert call_guarded("here", len, ())


def test_a_sweeper_looks_at_all_others_though_one_raises() -> None:
    """In the same round and in every later one."""

    class Watched:
        def __init__(self, *, breaks: bool) -> None:
            self.looks, self.breaks = 0, breaks

        def check(self, _: float) -> None:
            self.looks += 1
            if self.breaks:
                raise Planted

    async def play() -> tuple[list[int], Counter[str]]:
        counts, sweeper = caught_in(asyncio.get_running_loop()), TimeoutSweeper[Watched](1.0)
        watched = [Watched(breaks=number == 1) for number in range(3)]
        for one in watched:
            sweeper.add(one)
        await asyncio.sleep(1.01)
        sweeper.stop()
        return [one.looks for one in watched], counts

    looks, counts = run_virtually(play())
    assert looks == [8, 8, 8]
    assert counts == Counter(timeouts=8)


def test_a_line_that_cannot_be_written_loses_no_other() -> None:
    """Neither those of the same moment nor any later one."""

    class Writer:
        written = b""

        def put(self, lines: bytes, _: int) -> None:
            self.written += lines

    numbers = itertools.count(1)

    def encode(outcome: object) -> bytes:
        if (number := next(numbers)) == 2:
            raise Planted
        return b"%d " % number

    async def play() -> tuple[bytes, Counter[str]]:
        counts, writer = caught_in(asyncio.get_running_loop()), Writer()
        log = OutcomeLog(writer, encode)  # type: ignore[arg-type]
        for _ in range(3):
            log.on_outcome(an_outcome())
        await asyncio.sleep(1.0)
        log.on_outcome(an_outcome())
        await asyncio.sleep(1.0)
        return writer.written, counts

    assert run_virtually(play()) == (b"1 3 4 ", Counter(log=1))


def test_a_log_whose_writer_raises_once_is_written_on() -> None:
    """Many lines wait: those that are left when one piece has failed are written all the same."""

    class Writer:
        written = failed = 0

        def put(self, _: bytes, count: int) -> None:
            if not self.failed:
                self.failed = count
                raise Planted
            self.written += count

    async def play() -> tuple[int, int]:
        caught_in(asyncio.get_running_loop())
        writer = Writer()
        log = OutcomeLog(writer, lambda _: b"x")  # type: ignore[arg-type]
        for _ in range(1_000):
            log.on_outcome(an_outcome())
        await asyncio.sleep(1.0)
        return writer.failed, writer.written

    failed, written = run_virtually(play())
    assert failed + written == 1_000
    assert written >= 800


def test_a_child_follows_on_though_an_order_raises() -> None:
    """A reload that fails in an unforeseen way is answered with a fault; the orders behind it are done."""

    class Line(ControlChannel):
        def __init__(self) -> None:
            self.orders: list[Any] = [
                ApplyConfig(Broken()),  # type: ignore[arg-type]
                SetDrained("p", is_drained=True),
                ApplyEffects(FindingEffects()),
                ReopenLogs(),
                None,
            ]
            self.sent: list[Any] = []

        async def receive(self) -> Any:
            return self.orders.pop(0)

        def send(self, word: Any) -> None:
            self.sent.append(word)

    async def play() -> tuple[list[Any], Counter[str]]:
        counts, line = caught_in(asyncio.get_running_loop()), Line()
        await _follow(line, Broken(), Broken(), Broken(), Broken())
        return line.sent, counts

    sent, counts = run_virtually(play())
    assert [type(word) for word in sent] == [ConfigApplied]
    assert "Planted" in sent[0].faults[0]
    assert counts == Counter(supervisor=4)


# -- no new loop without a guard ---------------------------------------------------------------------------------------

MAY_RAISE = {
    "agent/heartbeat.py": {"_publish_periodically": "raises to `run`, which connects again"},
    "gateway/canary/state_store.py": {"update": "one change, for at most `LOCK_WAIT_S`"},
    "gateway/discovery/dns.py": {"follow": "raises to `Watcher._follow`"},
    "gateway/discovery/file.py": {"follow": "raises to `Watcher._follow`"},
    "gateway/discovery/kubernetes_api.py": {"_list": "raises to `follow`"},
    "gateway/discovery/kubernetes.py": {"follow": "raises to `Watcher._follow`"},
    "gateway/discovery/registry.py": {
        "follow": "raises to `Watcher._follow`",
        "_follow_redis": "raises to `follow`, which connects again",
        "_listen": "raises to `_follow_redis`",
    },
    "gateway/runtime/guard.py": {"keep": "the guard itself"},
    "gateway/cascades/cascade_run.py": {"serve": "one request", "_ask_model": "one request"},
    "gateway/pipeline/pipeline.py": {
        "try_pods": "one request",
        "place": "one request",
        "_place_continuation": "one request",
    },
    "gateway/pipeline/admission_queue.py": {"place": "one request"},
    "gateway/replica_sync/redis_bridge.py": {
        "_write_loop": "raises to `_keep`, which connects again",
        "_read_loop": "raises to `_keep`, which connects again",
    },
    "gateway/commands/deletion_cost.py": {"_follow": "a command: `look` reports failures, anything else ends it"},
    "gateway/deletion_cost/annotator.py": {"pods": "one list, page by page"},
    "gateway/kv_index/subscriber.py": {"_open": "raises to `run`", "_read_replay": "one replay"},
}
"""Loops in coroutines that are not decorated, each with its reason."""

ONE_SHOT = {
    "gateway/ext_proc/access_log.py": "gives up one request",
    "gateway/ext_proc/carrier.py": "gives up one request",
    "gateway/ext_proc/http2/connection.py": "one connection; its handle is reset before anything else",
    "gateway/runtime/guard.py": "the guard itself",
    "gateway/relay/holdback.py": "one answer",
    "gateway/http/client_connection.py": "closes one connection",
}
"""Modules whose callbacks belong to one request or connection, each with its reason: nothing repeats there."""

CALLBACK_AT = {
    **dict.fromkeys(("call_soon", "call_soon_threadsafe"), 0),
    **dict.fromkeys(("call_later", "call_at", "add_reader", "add_writer"), 1),
}


def unguarded_loops(source: Source) -> Iterator[str]:
    """Coroutine functions that loop for ever, or sleep in a loop, and would end by an exception."""
    for function in source.functions():
        if not isinstance(function, ast.AsyncFunctionDef) or _is_guarded(function):
            continue
        is_named = function.name in MAY_RAISE.get(str(source.path), {})
        if not is_named and any(_is_endless(node) for node in _own_nodes(function)):
            yield source.fault(function, f"{function.name} loops without `@restarted`")


def _is_guarded(function: ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).startswith(("restarted(", "guard.restarted(")) for one in function.decorator_list)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _is_endless(node: ast.AST) -> bool:
    if not isinstance(node, ast.While):
        return False
    return isinstance(node.test, ast.Constant) or any("asyncio.sleep(" in ast.unparse(one) for one in node.body)


def unguarded_callbacks(source: Source) -> Iterator[str]:
    """Callbacks given to the loop that are not called by `run`."""
    if str(source.path) in ONE_SHOT:
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLBACK_AT:
            at = CALLBACK_AT[node.func.attr]
            if len(node.args) <= at or ast.unparse(node.args[at]) not in ("call_guarded", "guard.call_guarded"):
                yield source.fault(node, f"`{node.func.attr}` calls what `call_guarded` does not guard")


@pytest.mark.parametrize("rule", [unguarded_loops, unguarded_callbacks])
def test_whatever_repeats_in_the_gateway_is_guarded(rule: Callable[[Source], Iterator[str]]) -> None:
    """A new loop or callback is decorated, called by `run`, or stands in a list above with its reason."""
    faults = [fault for source in read_sources("gateway", "agent") for fault in rule(source)]
    assert not faults, "\n" + "\n".join(faults)


PLANTED_LOOP = "async def watch(self):\n    while True:\n        await self.look()\n"
PLANTED_SLEEP = "async def watch(self):\n    while self.on:\n        await asyncio.sleep(1)\n"
PLANTED_TIMER = "def ring(self):\n    loop.call_later(1.0, self.ring)\n"
PLANTED_READER = "def read(self):\n    loop.add_reader(3, self.read)\n"


@pytest.mark.parametrize(
    ("rule", "text", "is_found"),
    [
        (unguarded_loops, PLANTED_LOOP, True),
        (unguarded_loops, PLANTED_SLEEP, True),
        (unguarded_loops, f'@restarted("x")\n{PLANTED_LOOP}', False),
        (unguarded_callbacks, PLANTED_TIMER, True),
        (unguarded_callbacks, PLANTED_READER, True),
        (unguarded_callbacks, 'def ring():\n    loop.call_later(1.0, call_guarded, "x", ring)\n', False),
    ],
)
def test_what_is_not_guarded_is_found(rule: Callable[[Source], Iterator[str]], text: str, is_found: bool) -> None:
    """The rules above see what they are there to see."""
    assert bool(list(rule(parse("gateway/planted.py", text)))) is is_found


def test_the_lists_of_exceptions_name_what_exists() -> None:
    """What is gone is to be struck off."""
    sources = {str(source.path): source for source in read_sources("gateway", "agent")}
    for path, functions in MAY_RAISE.items():
        assert set(functions) <= {function.name for function in sources[path].functions()}
    assert set(ONE_SHOT) <= set(sources)
