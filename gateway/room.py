"""Where a request waits until an engine may take it: the one place between the spine and the router that may wait.

Places at once where nothing bars it, in the same tick and without a task.
"""

from __future__ import annotations

from collections.abc import Callable

from routing.placement import Placement
from routing.request import Request
from routing.router import Router
from tenancy.promise import Promise
from tenancy.tenants import Caller


class Room:
    """One per gateway process."""

    def __init__(self, router: Router, *, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        self._router = router
        self._clock = clock
        self._draw = draw

    async def place(self, request: Request, caller: Caller, promise: Promise, avoid: frozenset[str]) -> Placement:
        """Put a request on an engine, now or when one may take it. Raises `Refused`.

        `avoid` names pods that have failed it. Where the caller is cancelled it has left the room in the same tick.
        """
        return self._router.place(request, avoid=avoid, now_s=self._clock(), draw=self._draw())
