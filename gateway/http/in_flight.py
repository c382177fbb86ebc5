"""What is under way for clients: each request is led in a task of its own, and seen through to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.http.response_writer import Reply
from routing.rejection import Reason, Refused


class UnderWay:
    """One per desk."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, reply: Reply, lead: Callable[[], Awaitable[None]]) -> None:
        """Have a request led; whatever becomes of that, its client is told an end."""
        reply.task = task = asyncio.get_running_loop().create_task(self._see_through(reply, lead))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _see_through(self, reply: Reply, lead: Callable[[], Awaitable[None]]) -> None:
        try:
            await lead()
        except Exception as fault:  # noqa: BLE001 - whatever is wrong with us, the client gets an answer
            self.report(fault, reply)
        finally:
            if not reply.ended:
                reply.cut()

    def report(self, fault: Exception, reply: Reply) -> None:
        """Something is wrong with us: tell whoever runs us what, and the client that it is."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"serving request {reply.request_id} failed", "exception": fault}
        )
        reply.refuse(Refused(Reason.GATEWAY_ERROR, "The gateway failed to serve this request."))
