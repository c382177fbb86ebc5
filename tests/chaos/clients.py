"""Clients as most people have them, and what became of each of their requests.

An answer counts as whole only if it says what a pod that nobody has disturbed says: text, finish reason and tokens.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.chaos.dialects import Left, listen
from tests.chaos.doing import TOKENS_BEFORE_ABORT
from tests.chaos.requested import Api, Asked, Heard, Tenant
from tests.chaos.sdks import LOST, TOLD, TOO_MANY, Sdks

TIMES = 3
"""A stream is asked for again at most, in a run in which a gateway may be lost every few seconds."""


class Fate(StrEnum):
    """What became of one request."""

    WHOLE = "whole"
    LEFT = "left"
    """Its client went away in the middle, as it had meant to; what it had heard was right."""
    LIMITED = "limited"
    """Refused, or ended as too long, by a limit of its tenant."""
    RECONNECTED = "reconnected"
    """The gateway itself was lost inside a stream; asked again, the answer was whole."""
    UNSEEN = "unseen"
    """A response that its engine gave up, and that said it was complete: vLLM has no other word for it there."""
    CUT = "cut"
    """A stream that had begun ended with an error that the gateway told."""
    FAILED = "failed"
    """Nothing of it came, after all retries."""
    WRONG = "wrong"
    """It said something else than an undisturbed pod."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended. `words` says what went wrong; seconds of the loop's clock, and how long it was silent at most."""

    requested: Asked
    fate: Fate
    began_s: float
    ended_s: float
    longest_wait_s: float
    words: str = ""


class Waits:
    """How long a client waits for the next piece."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self.began_s = self._last_s = self._clock()
        self.longest_s = 0.0

    def note(self) -> None:
        now_s = self._clock()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s


class Clients:
    """Ask through the balancer, and compare with what an undisturbed pod says."""

    def __init__(self, front: str, undisturbed: str, key_of: Callable[[Tenant], str]) -> None:
        self._front = {tenant: Sdks(front, key_of(tenant)) for tenant in Tenant}
        self._undisturbed = Sdks(undisturbed, "k")

    async def close(self) -> None:
        for sdks in (*self._front.values(), self._undisturbed):
            await sdks.close()

    @property
    def asked_again(self) -> int:
        """Retries that the SDKs made by themselves."""
        return sum(sdks.traffic.asked_again for sdks in self._front.values())

    @property
    def statuses(self) -> Counter[int]:
        """What they were answered, retries included."""
        return sum((sdks.traffic.statuses for sdks in self._front.values()), Counter())

    async def ask(self, requested: Asked) -> Ended:
        """Ask once; again where the gateway was lost inside a stream, as often as one may be."""
        waits = Waits()
        fate, words = await self._ask(requested, waits)
        waits.note()
        return Ended(requested, fate, waits.began_s, asyncio.get_running_loop().time(), waits.longest_s, words)

    async def _ask(self, requested: Asked, waits: Waits) -> tuple[Fate, str]:
        received = Heard()
        try:
            await listen(self._front[requested.tenant], requested, received, waits.note)
        except Left:
            return await self._compared(requested, received, Fate.LEFT)
        except LOST as error:
            return await self._again(requested, waits, TIMES) if received.pieces else (Fate.FAILED, repr(error))
        except TOLD as error:
            return _told(requested, received, error)
        return await self._compared(requested, received, Fate.WHOLE)

    async def _again(self, requested: Asked, waits: Waits, times: int) -> tuple[Fate, str]:
        received = Heard()
        try:
            await listen(self._front[requested.tenant], requested, received, waits.note)
        except Left:
            return await self._compared(requested, received, Fate.RECONNECTED)
        except (*LOST, *TOLD) as error:
            if received.pieces and times > 1 and isinstance(error, LOST):
                return await self._again(requested, waits, times - 1)
            return Fate.LIMITED if _is_limit(requested, error) else Fate.FAILED, f"asked again: {error!r}"
        return await self._compared(requested, received, Fate.RECONNECTED)

    async def _compared(self, requested: Asked, received: Heard, fate: Fate) -> tuple[Fate, str]:
        wanted = Heard()
        await listen(self._undisturbed, replace(requested, leaves_after=None), wanted, lambda: None)
        has_left = requested.leaves_after is not None and received.ended is None
        is_right = wanted.text.startswith(received.text) if has_left else received.answer == wanted.answer
        if is_right:
            return fate, ""
        if _was_shortened(requested, received, wanted):
            return Fate.LIMITED, ""
        if _was_given_up_unseen(requested, received, wanted):
            return Fate.UNSEEN, ""
        return Fate.WRONG, f"{received.answer!r} is not {wanted.answer!r}"


def _told(requested: Asked, received: Heard, error: Exception) -> tuple[Fate, str]:
    if received.pieces:
        return Fate.CUT, repr(error)
    return Fate.LIMITED if _is_limit(requested, error) else Fate.FAILED, repr(error)


def _is_limit(requested: Asked, error: Exception) -> bool:
    return requested.tenant is Tenant.NARROW and getattr(error, "status_code", None) == TOO_MANY


def _was_shortened(requested: Asked, received: Heard, wanted: Heard) -> bool:
    """A stream that has used up its tenant's tokens ends as if it had reached its longest."""
    is_beginning = wanted.text.startswith(received.text) and received.ended in ("length", "max_tokens", "incomplete")
    return requested.tenant is Tenant.NARROW and is_beginning


def _was_given_up_unseen(requested: Asked, received: Heard, wanted: Heard) -> bool:
    """By an engine that aborts after so many tokens; a shorter or longer piece of an answer is wrong."""
    is_piece = wanted.text.startswith(received.text) and received.tokens == TOKENS_BEFORE_ABORT
    return requested.api is Api.RESPONSES and received.ended == "completed" and is_piece
