"""The newest request under each key that clients give to theirs: who comes with a key ends the one before it.

Only the client knows that nobody wants the older answer any more; requests that look alike may both be wanted.
"""

from __future__ import annotations

from collections.abc import Hashable

from gateway.http.client_request import Asked
from gateway.http.response_writer import SANE_ID, Reply
from routing.rejection import Reason, Refused

HEADER = b"x-hearth-supersedes"


def key_of(asked: Asked) -> Hashable | None:
    """The key of a request, apart from what others call theirs; None where it has none. Raises `Refused`."""
    key = asked.headers.get(HEADER)
    if key is None:
        return None
    if not SANE_ID.fullmatch(key):
        name = HEADER.decode()
        raise Refused(Reason.BAD_REQUEST, f"`{name}` must be 1 to 128 visible ASCII characters.", param=name)
    return asked.caller.tenant.name, asked.caller.user, key


class Latest:
    """Replies that are under way, by key."""

    def __init__(self) -> None:
        self._replies: dict[Hashable, Reply] = {}

    def __len__(self) -> int:
        return len(self._replies)

    def take(self, key: Hashable, reply: Reply) -> None:
        """End whatever is under way under this key; `reply` is the newest from now on, until its task has ended."""
        older, self._replies[key] = self._replies.get(key), reply
        if reply.task is not None:
            reply.task.add_done_callback(lambda _: self._drop(key, reply))
        if older is None or older.ended:
            return
        refusal = Refused(Reason.SUPERSEDED, "A newer request has taken the place of this one.")
        task = older.task
        older.refuse(refusal)
        if task is not None:
            task.cancel(refusal)

    def _drop(self, key: Hashable, reply: Reply) -> None:
        if self._replies.get(key) is reply:
            del self._replies[key]
