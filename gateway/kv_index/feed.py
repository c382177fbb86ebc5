"""One engine's numbered batches put into the index in their order: gaps, late joins and restarts noticed and mended.

Knows no socket: whoever has one gives batches as they come and fetches what is asked for again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.kv_index.kv_batches import Reader, UnreadableError
from gateway.observe.log import EventLog
from routing.precise.event_reliability import Doubt, Trust
from routing.precise.kv_events import AllBlocksCleared
from routing.precise.precise_index import ExactIndex

MOST_WAITING = 4096
"""Batches kept while earlier ones are fetched again. Beyond them the gap counts as not mended."""


@dataclass(slots=True)
class FeedCount:
    """What went by, for metrics."""

    batches: int = 0
    events: int = 0
    gaps: int = 0
    """Batches that did not follow the one before them."""
    unhealed: int = 0
    """Gaps that could not be mended."""
    restarts: int = 0
    malformed: int = 0
    """Messages that could not be read."""


class Feed:
    """One per followed engine."""

    def __init__(
        self,
        engine: str,
        index: ExactIndex,
        *,
        say: EventLog,
        ask: Callable[[int], bool],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask` has all batches from a number on sent again (to `take_again`, then `all_again`); False: it cannot.
        `turned` is told whenever the engine has won or lost our trust.
        """
        self.engine = engine
        self.trust = Trust()
        self.count = FeedCount()
        self._index = index
        self._say = say
        self._ask = ask
        self._turned = turned
        self._reader = Reader()
        self._next = 0
        """The number that is expected."""
        self._asking: int | None = None
        """From which number batches are being sent again."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._has_hole = False
        """Something was left out of what was sent again."""
        self._has_restarted = False
        """We have seen it ourselves, and nobody else has said so yet."""
        self._was_told = False
        """Others have said so, and we have not seen it ourselves."""

    @property
    def unread(self) -> int:
        """Events of kinds that are not known here."""
        return self._reader.unread

    def begin(self) -> None:
        """We have just subscribed: what was said before us is asked for."""
        if self._asking is None:
            self._fetch(0)

    def succeed(self, former: Feed) -> None:
        """The engine is heard at another place than before: it has restarted, whether others have said so already or
        will.
        """
        self._has_restarted = not former._was_told

    def take(self, number: int, payload: bytes) -> None:
        """A batch has come by itself."""
        if self._asking is not None:
            self._waiting.append((number, payload))
            if len(self._waiting) > MOST_WAITING:
                self._give_up()
        elif number == self._next:
            self._apply(number, payload)
        elif number < self._next:
            self._restarted(number, payload)
        else:
            self._missed(number, payload)

    def take_again(self, number: int, payload: bytes) -> None:
        """A batch that was asked for has come."""
        if self._asking is None or number < self._next:
            return
        if number > self._next:
            if self._next != self._asking:
                # The publisher's socket drops what it cannot send at once: the rest is asked for when this has ended.
                self._has_hole = True
                return
            self._lose()
        self._apply(number, payload)

    def all_again(self, *, answered: bool) -> None:
        """Everything that was asked for has been sent; or nobody has answered."""
        asked, self._asking = self._asking, None
        if asked is None:
            return
        if not answered:
            self._asking = asked
            self._give_up()
        elif self._next == asked == 0:
            # It has never said anything, so it holds nothing.
            self._believe()
            self._take_waiting()
        elif self._next > asked and self._has_hole:
            self._fetch(self._next)
        else:
            self._take_waiting()

    def pod_restarted(self) -> None:
        """Others have seen its pod restart. Where we have not noticed that ourselves, its cache is lost now."""
        if self._has_restarted:
            self._has_restarted = False
            return
        self._was_told = True
        self._lose_cache()
        self.begin()

    # -- what comes out of order ---------------------------------------------------------------------------------------

    def _missed(self, number: int, payload: bytes) -> None:
        self.count.gaps += 1
        self._waiting.append((number, payload))
        self._fetch(self._next)

    def _lose_cache(self) -> None:
        self._index.drop(self.engine)
        self._index.follow(self.engine)
        self._next, self._asking = 0, None
        self._waiting.clear()
        self._doubt(Doubt.UNHEARD)

    def _restarted(self, number: int, payload: bytes) -> None:
        self.count.restarts += 1
        self._has_restarted = True
        self._say("info", "engine counts its KV events from the start: its cache was lost", engine=self.engine)
        self._lose_cache()
        if number == 0:
            self._apply(number, payload)
        else:
            self._waiting.append((number, payload))
            self._fetch(0)

    def _fetch(self, start: int) -> None:
        self._asking, self._has_hole = start, False
        if not self._ask(start):
            self._give_up()

    def _give_up(self) -> None:
        """Nobody can tell what was missed: go on with what comes."""
        started_late = self._next == 0 and self.trust.doubt in (Doubt.UNHEARD, Doubt.LATE)
        self._asking = None
        if not self._waiting:
            return
        first = self._waiting[0][0]
        if first != self._next:
            self._lose(Doubt.LATE if started_late else Doubt.GAP)
            self._next = first
        self._take_waiting()

    def _take_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            number, payload = waiting.popleft()
            if number < self._next:
                continue
            if self._asking is None and number > self._next:
                self._lose()
                self._next = number
            self.take(number, payload)

    def _lose(self, doubt: Doubt | None = None) -> None:
        doubt = doubt or (Doubt.LATE if self._next == 0 else Doubt.GAP)
        self.count.unhealed += 1
        if self._doubt(doubt):
            self._say("warning", "KV events were missed: the shadow cache decides", engine=self.engine, why=str(doubt))

    # -- what comes in order -------------------------------------------------------------------------------------------

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self.count.batches += 1
        if number == 0:
            self._believe()
        try:
            events = self._reader.read(payload)
        except UnreadableError:
            self.count.malformed += 1
            self._lose(Doubt.GAP)
            return
        self.count.events += len(events)
        try:
            self._index.take(self.engine, events)
        except Exception as fault:  # noqa: BLE001 - what one engine says must not end the following of all
            self.count.malformed += 1
            self._say("error", "KV events could not be followed", engine=self.engine, fault=repr(fault))
            self._lose(Doubt.GAP)
            return
        if any(isinstance(event, AllBlocksCleared) for event in events):
            self._heal("cleared")

    def _heal(self, why: str) -> None:
        if not self.trust.is_exact:
            self._say("info", "KV events are complete again", engine=self.engine, why=why)
        self._believe()

    # -- trust ---------------------------------------------------------------------------------------------------------

    def _believe(self) -> None:
        self.trust.complete()
        self._turned()

    def _doubt(self, doubt: Doubt) -> bool:
        self._turned()
        return self.trust.fall(doubt)
