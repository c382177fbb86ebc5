"""Counts the events of one stream whose tenant has a limit on output, and ends it where nothing more is to be had.

What is not a flow is written through it; a flow counts down and tells it in time (`flow.py`). Other streams have none.
"""

from __future__ import annotations

from gateway.http.response_writer import FAR, Reply
from gateway.limits.meter import Tab
from gateway.relay.ending import ending_of
from gateway.relay.relay import Relay
from routing.rejection import Reason

EVENT_END = b"\n\n"


class Watch:
    """One request. `relay` is the attempt under way, and by it alone the reply is known: nothing may go in circles."""

    __slots__ = ("_tab", "_write", "is_over", "relay")

    def __init__(self, reply: Reply, tab: Tab) -> None:
        self._tab = tab
        self._write = reply.write_by(self.write)
        reply.passed = self.passed
        self.relay: Relay | None = None
        self.is_over = False

    def write(self, raw: bytes) -> None:
        """Write what goes to the client, until the stream was ended; what comes after that is nobody's."""
        if self.is_over:
            return
        self._write(raw)
        self.passed(raw.count(EVENT_END))

    def passed(self, events: int) -> int:
        """So many have gone to the client. Returns after how many more to say so again, none where it is over."""
        if events and not self.is_over and (reason := self._tab.passed(events)) is not None:
            self._end(reason)
        return 0 if self.is_over else min(self._tab.unheeded, FAR)

    def _end(self, reason: Reason) -> None:
        relay, usage = self.relay, self._tab.usage()
        if relay is None or not relay.is_stream or relay.ended.done():
            return
        words = ending_of(
            relay.api,
            relay.kept.joined(),
            usage,
            reason=reason,
            sequences=relay.placement.request.sequences,
            tells_usage=not relay.withholds_usage,
        )
        relay.reply.write_by(self._write)
        relay.cut_short(words, f"ended by a limit: {reason.value}", usage)
        self.is_over = True
        relay.reply.write_by(self.write)
