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

LOOP_CONTEXT_KEY = "hearth_loop"
"""Key of the name in the context of the loop's exception handler."""

RESTART_DELAY_S = 1.0
"""Delay before an endless task that has raised is restarted."""


def report_exception(name: str, error: Exception) -> None:
    """Pass a caught exception to the loop's exception handler."""
    words = f"exception in {name}"
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        logging.getLogger(__name__).exception(words, exc_info=error)
    else:
        loop.call_exception_handler({"message": words, "exception": error, LOOP_CONTEXT_KEY: name})


def call_guarded(name: str, call: Callable[..., object], *args: object) -> bool:
    """Call a function, and report what it raises. Returns whether it raised nothing."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - reported; it must not end what repeats
        report_exception(name, error)
        return False
    return True


def restarted(name: str) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, Coroutine[Any, Any, None]]]:
    """Decorate an endless coroutine function: what it raises is reported, and it is restarted after a delay."""

    def decorate(endless: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
        @wraps(endless)
        async def keep(*args: P.args, **kwargs: P.kwargs) -> None:
            while True:
                try:
                    return await endless(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - reported; it must not end the task
                    report_exception(name, error)
                await asyncio.sleep(RESTART_DELAY_S)

        keep.restarted_as = name  # type: ignore[attr-defined]
        return keep

    return decorate


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task has been cancelled and a library has swallowed the exception.

    `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives together with a result.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class PeriodicTimer:
    """A periodic timer that continues while it is wanted, whatever its callback raises."""

    __slots__ = ("_is_wanted", "_name", "_tick", "period_s", "timer")

    def __init__(self, name: str, period_s: float, tick: Callable[[], object], is_wanted: Callable[[], object]) -> None:
        """`is_wanted` is called after each `tick`; while it returns a true value, the timer is set again."""
        self.period_s = period_s
        self._name = name
        self._tick = tick
        self._is_wanted = is_wanted
        self.timer: asyncio.TimerHandle | None = None
        """None while it is not running."""

    def start(self) -> None:
        """Start the timer unless it is running."""
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(self.period_s, self._ring)

    def stop(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _ring(self) -> None:
        self.timer = None
        try:
            call_guarded(self._name, self._tick)
        finally:
            if self._is_wanted():
                self.start()
