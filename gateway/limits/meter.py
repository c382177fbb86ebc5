"""What one request runs up at the accounts of its caller, from the reservation to the last token.

A stream is counted as it passes, event by event. Where its caller has a limit on output it tops its reservation up in
steps; where nothing more is to be had it has to end. It looks at its limits every `LOOK` events at the latest: they may
be others meanwhile.
"""

from __future__ import annotations

from sys import maxsize
from typing import Protocol

from gateway.limits.rate_limit_headers import Fields, fields_of
from gateway.limits.rejection import REASONS
from routing.rejection import Reason
from routing.request import Request, Usage
from tenancy.limits.account_usage import Lack
from tenancy.limits.reservation import Reservation
from tenancy.limits.usage import NOTHING, Rates, Use

STEPS = (64, 8, 1)
"""Tokens that a stream asks for when it has used up what it has; the most that there is room for."""

AHEAD = 32
"""So many tokens before that it asks for the first time: others may have to be asked for their leave."""


LOOK = 64
"""Events after which a stream looks whether its limits have changed."""


class Cashier(Protocol):
    """What a tab wants of whoever opened it."""

    def now_s(self) -> float: ...
    def is_under_load(self) -> bool: ...
    def rates(self, model: str) -> Rates: ...
    def tokens_per_event(self, tenant: str | None, model: str) -> float: ...
    def want_more(self, reservation: Reservation, lacks: tuple[Lack, ...]) -> None:
        """A stream will soon need what is not there: perhaps others have it."""
        ...

    def learn(self, request: Request, tenant: str | None, usage: Usage, events: int) -> None: ...
    def note_cut(self, lack: Lack) -> None:
        """A stream has to end for lack of this."""
        ...


class Tab:
    """One request. Whatever is said, and in whatever order, nothing is charged twice and nothing stays held."""

    __slots__ = (
        *("_asks_at", "_cashier", "_counts", "_events", "_heed_at", "_most", "_per_event", "_reservation", "_settled"),
        *("_tenant", "_version", "is_watched", "max_tokens", "request"),
    )

    def __init__(
        self,
        cashier: Cashier,
        request: Request,
        tenant: str | None,
        reservation: Reservation,
        max_tokens: int | None = None,
    ) -> None:
        self._cashier = cashier
        self._reservation = reservation
        self._events = 0
        self._settled = False
        self._tenant = tenant
        self.request = request
        self.max_tokens = max_tokens
        """How many tokens each answer may have at most, where its limits allow less than its client."""
        self.is_watched = request.stream
        """Whether its events have to be counted: there may be a limit on output before it has ended."""
        self._per_event = cashier.tokens_per_event(tenant, request.model) if self.is_watched else 1.0
        self._most = maxsize if request.max_tokens is None else request.max_tokens * request.sequences
        self._version, self._counts = 0, False
        self._asks_at = self._heed_at = maxsize
        if self.is_watched:
            self._look_up()

    def __repr__(self) -> str:
        return f"<Tab of {self.request.id}, {self._events} events, {self._reservation}>"

    def fields(self) -> Fields:
        """Headers that say how its accounts stand."""
        anthropic = self.request.api.is_anthropic
        return fields_of(self._reservation.books, self._cashier.now_s(), anthropic=anthropic)

    def passed(self, events: int) -> Reason | None:
        """Events have gone to the client. Returns why the stream must end, where it must."""
        self._events += events
        return self._heed() if self._events >= self._heed_at else None

    @property
    def unheeded(self) -> int:
        """How many events may pass before one needs leave."""
        return max(1, self._heed_at - self._events)

    @property
    def tokens(self) -> int:
        """Of output, as far as events tell."""
        return round(self._events * self._per_event)

    @property
    def held_tokens(self) -> int:
        """Of output, that are granted to it: those that have passed and those that may."""
        return self._reservation.held.output_tokens

    def usage(self) -> Usage:
        """What it took, as far as is known without the engine's word."""
        return Usage(self._reservation.held.input_tokens, self.tokens)

    def settle(self, usage: Usage | None, model: str) -> None:
        """The engine has answered in full, and says what that took where it says so."""
        if usage is None:
            return
        self._settled = True
        used = Use(
            input_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens or 0,
            output_tokens=usage.completion_tokens,
            rates=self._cashier.rates(model),
        )
        self._reservation.settle(used, self._cashier.now_s(), under_load=self._cashier.is_under_load())
        self._cashier.learn(self.request, self._tenant, usage, self._events)

    def close(self, *, was_carried: bool, was_served: bool) -> None:
        """It has ended. What was really used stays charged: the request if a pod had it, tokens if they were made."""
        reservation, now_s = self._reservation, self._cashier.now_s()
        if not was_carried:
            reservation.settle(NOTHING, now_s)
        elif not self._settled:
            held = reservation.held
            made = self.tokens if self.request.stream else held.output_tokens
            used = Use(1, held.input_tokens, held.cached_tokens, made, held.rates) if was_served else Use(1)
            reservation.settle(used, now_s, under_load=self._cashier.is_under_load())
        reservation.close(now_s)

    def _heed(self) -> Reason | None:
        reservation = self._reservation
        if reservation.version != self._version:
            # What was granted by other limits and not used yet has to be granted anew.
            reservation.shrink(self.tokens, self._cashier.now_s())
            self._look_up()
        while self._events >= self._asks_at:
            lacks = self._top_up()
            if lacks:
                return self._lack(lacks)
            self._asks_at = self._next_ask()
        self._heed_at = min(self._asks_at, self._events + LOOK)
        return None

    def _lack(self, lacks: tuple[Lack, ...]) -> Reason | None:
        """Nothing more is to be had: the stream ends where what it has ends."""
        held = self._reservation.held.output_tokens
        if self.tokens >= held:
            self._cashier.note_cut(lacks[0])
            return REASONS[lacks[0].kind]
        self._asks_at = max(self._events + 1, int(held / self._per_event))
        self._heed_at = min(self._asks_at, self._events + LOOK)
        self._cashier.want_more(self._reservation, lacks)
        return None

    def _look_up(self) -> None:
        """Go by the limits that there are now."""
        self._version = self._reservation.version
        self._counts = any(kind.counts_output for book in self._reservation.books for kind in book.meters)
        self._asks_at = self._next_ask()
        self._heed_at = min(self._asks_at, self._events + LOOK)

    def _top_up(self) -> tuple[Lack, ...]:
        """Take as much as there is room for, of the steps; where there is none at all, say for lack of what."""
        reservation, cashier = self._reservation, self._cashier
        lacks: tuple[Lack, ...] = ()
        for step in STEPS:
            more = min(step, self._most - reservation.held.output_tokens)
            lacks = reservation.top_up(more, cashier.now_s(), under_load=cashier.is_under_load())
            if not lacks:
                break
        return lacks

    def _next_ask(self) -> int:
        """At which event to ask for more; an answer as long as the client lets it be needs no more."""
        held = self._reservation.held.output_tokens
        if not self._counts or held >= self._most:
            return maxsize
        return max(1, int((held - AHEAD) / self._per_event))
