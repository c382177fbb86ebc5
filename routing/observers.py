"""Observers of placements: called after the routing state was changed; they affect no decision.

What a decision itself needs (ledger, prefix index, costs, admission) is called directly, in the order written in
`routing.decision.router` and `routing.decision.placement`. Components that only receive them (replica sync, the
precise prefix index) subscribe here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from routing.blocks import Prompt
from routing.ledger import Charge
from routing.pods import Engine
from routing.request import Request, Usage

Report = Callable[[str, Exception], None]
"""Takes the name of an observer and what it raised."""


class Settlement(Struct, frozen=True, gc=False):
    """How a complete response was accounted."""

    usage: Usage | None
    """As the engine reports it; without cached tokens for the decode engine of a pair."""
    counts_prompt: bool = False
    """Whether usage counts exactly the prompt of the request: not where it continues a stored response."""
    grown: Prompt | None = None
    """The prompt followed by its response, where that is known."""
    response_id: str | None = None
    running: float = 0.0
    """Sequences decoded beside it, on average."""
    decode_s: float | None = None
    """Seconds from the first token to the last; None where it was not streamed."""


class PlacementObserver(Protocol):
    """Subscribes to every charge of this router. A pair is two charges: one per engine."""

    @property
    def name(self) -> str:
        """Under which exceptions are reported."""
        ...

    def placed(self, request: Request, engine: Engine, charge: Charge) -> None:
        """A request was charged to an engine; again, with another charge, where it has moved."""
        ...

    def first_token(self, request: Request, charge: Charge, work_tokens: float, took_s: float) -> None:
        """Its prefill is done, `took_s` after it was placed; `work_tokens` is 0 where that teaches nothing."""
        ...

    def settled(self, request: Request, charge: Charge, settlement: Settlement) -> None:
        """The engine has answered in full."""
        ...

    def ended(self, request: Request, charge: Charge) -> None:
        """It has left that engine, however it ended. May be called again for the same charge."""
        ...


class ObserverList:
    """All observers of one router. An exception of one is counted and reported; the others are still called."""

    __slots__ = ("_report", "errors", "members")

    def __init__(self, members: tuple[PlacementObserver, ...], report: Report) -> None:
        self.members = members
        self.errors = 0
        self._report = report

    def placed(self, request: Request, engine: Engine, charge: Charge) -> None:
        for member in self.members:
            try:
                member.placed(request, engine, charge)
            except Exception as error:  # noqa: BLE001 - of this observer alone
                self._failed(member, error)

    def first_token(self, request: Request, charge: Charge, work_tokens: float, took_s: float) -> None:
        for member in self.members:
            try:
                member.first_token(request, charge, work_tokens, took_s)
            except Exception as error:  # noqa: BLE001 - of this observer alone
                self._failed(member, error)

    def settled(self, request: Request, charge: Charge, settlement: Settlement) -> None:
        for member in self.members:
            try:
                member.settled(request, charge, settlement)
            except Exception as error:  # noqa: BLE001 - of this observer alone
                self._failed(member, error)

    def ended(self, request: Request, charge: Charge) -> None:
        for member in self.members:
            try:
                member.ended(request, charge)
            except Exception as error:  # noqa: BLE001 - of this observer alone
                self._failed(member, error)

    def _failed(self, member: PlacementObserver, error: Exception) -> None:
        self.errors += 1
        self._report(member.name, error)


def report_nowhere(_name: str, _error: Exception) -> None:
    """Report nowhere: the exception is only counted."""
