"""Cancels the older of two requests with the same `x-hearth-supersedes` key.

Only the client knows that the older response is not needed any more; requests that look alike may both be needed.
"""

from __future__ import annotations

from collections.abc import Hashable

from gateway.http.client_request import IncomingRequest
from gateway.http.request_headers import VALID_REQUEST_ID
from gateway.http.response_writer import ResponseWriter
from routing.rejection import Reason, RequestRejected

SUPERSEDES_HEADER = b"x-hearth-supersedes"


def supersede_key_of(incoming: IncomingRequest) -> Hashable | None:
    """Return the key of a request, distinct from other users' keys; None without one. Raises `RequestRejected` if
    invalid.
    """
    key = incoming.headers.get(SUPERSEDES_HEADER)
    if key is None:
        return None
    if not VALID_REQUEST_ID.fullmatch(key):
        name = SUPERSEDES_HEADER.decode()
        raise RequestRejected(Reason.BAD_REQUEST, f"`{name}` must be 1 to 128 visible ASCII characters.", param=name)
    return incoming.caller.tenant.name, incoming.caller.user, key


class SupersedeRegistry:
    """The newest response in flight of each key."""

    def __init__(self) -> None:
        self._replies: dict[Hashable, ResponseWriter] = {}

    def __len__(self) -> int:
        return len(self._replies)

    def supersede(self, key: Hashable, reply: ResponseWriter) -> None:
        """Reject the older request of this key; `reply` is the newest until its task has ended."""
        older, self._replies[key] = self._replies.get(key), reply
        if reply.task is not None:
            reply.task.add_done_callback(lambda _: self._drop(key, reply))
        if older is None or older.has_ended:
            return
        rejection = RequestRejected(
            Reason.SUPERSEDED, "Superseded by a newer request with the same x-hearth-supersedes key."
        )
        task = older.task
        older.reject(rejection)
        if task is not None:
            task.cancel(rejection)

    def _drop(self, key: Hashable, reply: ResponseWriter) -> None:
        if self._replies.get(key) is reply:
            del self._replies[key]
