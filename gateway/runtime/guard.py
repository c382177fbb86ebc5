"""Runs what repeats so that no exception ends it: callbacks, timers and endless tasks.

An exception is reported to the event loop's exception handler under the name of what raised it, and the timer is set
again, or the task started again. That handler is `gateway/observe/metrics/process.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")

NAME = "hearth_loop"
"""The key of the name in what the exception handler of a loop is given."""

AGAIN_S = 1.0
"""An endless task that has raised is started again after so long."""


def report(name: str, error: Exception) -> None:
    """Pass a caught exception to the loop's exception handler."""
    words = f"exception in {name}"
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        logging.getLogger(__name__).exception(words, exc_info=error)
    else:
        loop.call_exception_handler({"message": words, "exception": error, NAME: name})


def run(name: str, call: Callable[..., object], *args: object) -> bool:
    """Call it now, and report what it raises. Returns whether it raised nothing."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - reported, and nothing that repeats may end with it
        report(name, error)
        return False
    return True


def restarted(name: str) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, Coroutine[Any, Any, None]]]:
    """Decorate an endless coroutine function: what it raises is reported, and it begins again a moment later."""

    def decorate(endless: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
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

    __slots__ = ("_is_wanted", "_name", "_tick", "_timer", "period_s")

    def __init__(self, name: str, period_s: float, tick: Callable[[], object], is_wanted: Callable[[], object]) -> None:
        """`is_wanted` is asked after each `tick`: while it is true the timer is set again."""
        self.period_s = period_s
        self._name = name
        self._tick = tick
        self._is_wanted = is_wanted
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ring after a period and every period from then on, unless it rings already."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.period_s, self._ring)

    def stop(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        try:
            run(self._name, self._tick)
        finally:
            if self._is_wanted():
                self.start()
