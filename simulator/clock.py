"""An asyncio event loop whose clock jumps to the next timer when nothing is ready: an hour of waiting takes no time.

Everything written for asyncio runs in it unchanged as long as all it waits for is made inside the loop: timers,
futures, events, queues. Sockets, threads and subprocesses are of the world outside and are refused.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):  # noqa: N818 - what has happened, in one word
    """Nothing is ready, no timer is set, and the main task has not ended: it would wait for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and does not advance while anything is ready."""

    _scheduled: list[asyncio.TimerHandle]
    """The timers of asyncio's own base class, soonest first. Cancelled ones are gone from the front by the time it asks
    the selector to wait."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Leap(self))

    def __repr__(self) -> str:
        return f"<VirtualLoop at {self._now_s:.6f} s, {len(self._scheduled)} timers>"

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def leap(self) -> None:
        """Set the clock to exactly the next timer: a sum of waits would be off by a rounding."""
        if not self._scheduled:
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(self))
            raise Deadlock(f"nothing is scheduled at {self._now_s:.3f} s, and these tasks wait for ever: {waiting}")
        self._now_s = max(self._now_s, self._scheduled[0].when())

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        """Refused: the clock would jump ahead of a thread."""
        raise RuntimeError("a virtual loop runs no threads: its clock would jump ahead of them")


class _Leap(selectors.BaseSelector):
    """Waits for nothing: where a real selector would sleep, the loop's clock leaps.

    The one file it knows is the pipe by which a loop wakes itself; nothing ever writes to it here.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._files: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._files:
            raise RuntimeError("a virtual loop has no sockets: its clock would jump ahead of them")
        key = self._files[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.leap()
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in a virtual loop of its own, as `asyncio.run` does in a real one."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
