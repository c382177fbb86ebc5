"""The body of an answer that goes on where another pod's was cut: its events are joined to those before.

Each is read and written anew, which costs more than to pass it on: few streams are ever cut.
"""

from __future__ import annotations

from cascade.logprobs import Trim
from gateway.pipeline.attempt import LegEnd
from gateway.relay.bodies import EventStream, PodHead, Relaying
from gateway.relay.fast_path import Parsing
from gateway.relay.recorder import Kept
from gateway.relay.sse import Scanner
from gateway.resume.splice import Differs, Stitch, stitched

HELD_BYTES = 4 << 20
"""Of an event that has not ended: these are read, not passed on, and the first may tell every token of the prompt."""


class ResumedStream(EventStream):
    """What is kept of it is what its client is sent: to it this is one answer, to a next pod as well."""

    __slots__ = ("_stitch", "_trim")

    def __init__(self, relay: Relaying, head: PodHead, stitch: Stitch, trim: Trim | None) -> None:
        """`trim` takes out what was asked of the pod on a judge's behalf."""
        super().__init__(relay, head, Scanner(stitch.api, Kept(0), withholds_usage=False, held_bytes=HELD_BYTES))
        self._stitch = stitch
        self._trim = trim

    @property
    def scanner(self) -> Scanner:
        """Of the pod's own events."""
        return self._scanner

    def flow(self, line: Parsing) -> None:
        """Nothing goes on as it came."""

    def passes(self, events: bytes) -> None:
        relay = self._relay
        relay.goes_on()
        try:
            joined = stitched(self._stitch, self._trim.events(events) if self._trim is not None else events)
        except Differs:
            relay.disown(LegEnd.DIFFERENT, "Another pod, asked the same again, gave another answer.")
            return
        if joined is None:
            relay.disown(LegEnd.MALFORMED, "The pod's events are not what its API says.")
        elif joined:
            relay.kept.add(joined)
            super().passes(joined)
