"""The hold-back window: what of an answer has come and is not judged yet. The client has seen none of it.

Chunks are held as they came; they are read as far as the window reaches, and never after it. Knows no socket.
"""

from __future__ import annotations

from cascade.calibration_file import Verdict
from cascade.judging import HELD_BYTES, AnswerEvidence, HoldBack, Judge, Moment
from gateway.cascades.answers import hear_events
from routing.request import Api


class Window:
    """One stream's, until it is judged."""

    __slots__ = ("_api", "_bytes", "_evidence", "_hold_back", "_judge", "_pieces")

    def __init__(self, api: Api, judge: Judge) -> None:
        self._api = api
        self._judge = judge
        self._hold_back: HoldBack = judge.hold_back
        self._evidence = AnswerEvidence()
        self._pieces: list[bytes] = []
        self._bytes = 0

    @property
    def has_answer(self) -> bool:
        """Whether anything that the window counts has come: its time runs from then on."""
        return self._counted > 0

    @property
    def tokens(self) -> int:
        """Everything that the engine has generated for it so far."""
        return self._evidence.tokens + self._evidence.reasoning_tokens

    def take(self, events: bytes) -> Verdict | None:
        """Hold these whole events; a verdict where it is time for one."""
        self._pieces.append(events)
        self._bytes += len(events)
        hear_events(self._api, events, self._evidence)
        hold_back = self._hold_back
        if self._bytes > HELD_BYTES:
            return self.judge(Moment.ROOM)
        if self._counted >= hold_back.tokens and not hold_back.whole:
            return self.judge(Moment.WINDOW)
        return None

    def judge(self, moment: Moment) -> Verdict:
        """Have it judged now, by what has come."""
        return self._judge.weigh(self._evidence, moment)

    def held(self) -> bytes:
        """All of it, and nothing is held any more."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    @property
    def _counted(self) -> int:
        seen = self._evidence
        return seen.tokens or (seen.reasoning_tokens if self._hold_back.streams_reasoning else 0)
