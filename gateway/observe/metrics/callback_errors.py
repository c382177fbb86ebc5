"""Counts and logs the exceptions of timers, callbacks and endless tasks. See `gateway/runtime/guard.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from gateway.runtime.guard import NAME

OTHER = "other"
"""The label of exceptions in callbacks and tasks that no guard names."""

MOST_KINDS = 256
"""Kinds of exceptions that are logged; more are only counted."""


class CallbackErrors(Collector):
    """The exception handler of one event loop. Counts by name; logs each kind of exception once."""

    def __init__(self, say: Callable[..., None], *, after: Callable[[], None] = lambda: None) -> None:
        """`after` is called after each exception that a guard has caught, to repair what it left half done."""
        self._say = say
        self._after = after
        self._logged: set[tuple[str, str, str]] = set()
        self.caught: Counter[str] = Counter()

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
        self._after()

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
