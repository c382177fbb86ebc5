"""Runs what repeats so that no exception ends it: callbacks, timers and endless tasks.

An exception is reported to the event loop's exception handler under the name of what raised it, and the timer is set
again, or the task started again. `CallbackErrors` is that handler: it counts every exception and logs each kind once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

P = ParamSpec("P")

NAME = "hearth_loop"
"""The key of the name in what the exception handler of a loop is given."""

OTHER = "other"
"""The label of exceptions in callbacks and tasks that no guard names."""

AGAIN_S = 1.0
"""An endless task that has raised is started again after so long."""

MOST_KINDS = 256
"""Kinds of exceptions that are logged; more are only counted."""


def report(name: str, error: Exception) -> None:
    """Pass a caught exception to the loop's exception handler."""
    context = {"message": f"exception in {name}", "exception": error, NAME: name}
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        logging.getLogger(__name__).error(context["message"], exc_info=error)
    else:
        loop.call_exception_handler(context)


def run(name: str, call: Callable[..., object], *args: object) -> bool:
    """Call it now, and report what it raises. Returns whether it raised nothing."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - reported, and nothing that repeats may end with it
        report(name, error)
        return False
    return True


def restarted(name: str) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """Decorate an endless coroutine function: what it raises is reported, and it begins again a moment later."""

    def decorate(endless: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @wraps(endless)
        async def keep(*args: P.args, **kwargs: P.kwargs) -> None:
            while True:
                try:
                    return await endless(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - reported, and the task may not end with it
                    report(name, error)
                await asyncio.sleep(AGAIN_S)

        keep.restarted_as = name  # type: ignore[attr-defined]
        return keep

    return decorate


class Ticker:
    """A timer that rings again and again while it is wanted, whatever its callback raises."""

    __slots__ = ("_is_wanted", "_name", "_tick", "_timer")

    def __init__(self, name: str, tick: Callable[[], object], is_wanted: Callable[[], object]) -> None:
        """`is_wanted` is asked after each `tick`: while it is true the timer is set again."""
        self._name = name
        self._tick = tick
        self._is_wanted = is_wanted
        self._timer: asyncio.TimerHandle | None = None

    def start(self, period_s: float) -> None:
        """Ring after so long and every so long from then on, unless it rings already."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(period_s, self._ring, period_s)

    def stop(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, period_s: float) -> None:
        self._timer = None
        try:
            run(self._name, self._tick)
        finally:
            if self._is_wanted():
                self.start(period_s)


class CallbackErrors(Collector):
    """The exception handler of one event loop. Counts by name; logs each kind of exception once."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say
        self._logged: set[tuple[str, str, str]] = set()
        self.caught: Counter[str] = Counter()
        self.after: Callable[[], None] = lambda: None
        """Called after each exception that a guard has caught: what it left half done is to be found."""

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take note of an exception. Of those that no guard names, asyncio's own words are logged as well."""
        name = context.get(NAME)
        self.caught[name or OTHER] += 1
        if name is None:
            loop.default_exception_handler(context)
            return
        error = context["exception"]
        kind = (name, type(error).__name__, _place(error))
        if kind not in self._logged and len(self._logged) < MOST_KINDS:
            self._logged.add(kind)
            self._say("error", "exception caught, its loop goes on", loop=name, error=kind[1], at=kind[2])
        self.after()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The family of this moment."""
        words = "Exceptions caught in timers, callbacks and endless tasks, which go on."
        errors = CounterMetricFamily("hearth_callback_errors", words, labels=("loop",))
        for name, count in self.caught.items():
            errors.add_metric((name,), count)
        yield errors


def _place(error: BaseException) -> str:
    """Where it was raised. Its own words may contain what a client has sent, and are not logged."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
