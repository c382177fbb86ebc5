"""The words by which routers tell each other what they put on engines, and the voice in which one router says them.

Words are values without text: engines and models by name, prompts by their block hashes, sessions and responses by
theirs. How words travel is not known here, nor who hears them.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from routing.affinity import key_of
from routing.blocks import Prompt
from routing.ledger import Charge
from routing.request import Request


class Open(Struct, frozen=True, gc=False):
    """One request that is on an engine now: what it was charged there."""

    number: int
    """Told by its router once only."""
    engine: str
    prefill_tokens: float
    prefill_s: float
    kv_tokens: float
    sequences: int
    in_prefill: bool = True
    queues: bool = True
    """Whether its prefill is done there."""


class Placed(Struct, frozen=True, gc=False):
    """A request was put on an engine."""

    charge: Open
    model: str
    prompt: Prompt
    session: int | None = None


class FirstToken(Struct, frozen=True, gc=False):
    """Its prefill is done; what that teaches of the engine's pace."""

    number: int
    work_tokens: float
    took_s: float


class Settled(Struct, frozen=True, gc=False):
    """The engine has answered in full; what that teaches of its cache and its steps."""

    number: int
    prompt_tokens: int = 0
    """As the engine counts them; none where it has not told."""
    cached_tokens: int | None = None
    completion_tokens: int = 0
    grown_blocks: tuple[int, ...] = ()
    """What the prompt with its answer behind it has beyond the blocks of the prompt, where that is known."""
    grown_size: int = 0
    response: int | None = None
    running: float = 0.0
    """How many were decoded beside it, on average."""
    decode_s: float | None = None


class Ended(Struct, frozen=True, gc=False):
    """The request has left the engine, however it ended."""

    number: int


class Stated(Struct, frozen=True, gc=False):
    """All that its router has open: whatever else somebody believes of it is an error."""

    open: tuple[Open, ...]


News = Placed | FirstToken | Settled | Ended | Stated


class Voice:
    """What one router says. Kept in order until somebody takes it; `wake` is called when there is something to take."""

    __slots__ = ("_open", "_said", "_wake")

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._said: list[News] = []
        self._open: dict[int, tuple[Charge, str]] = {}

    def __repr__(self) -> str:
        return f"<Voice {len(self._open)} open, {len(self._said)} to say>"

    @property
    def open_count(self) -> int:
        """How many charges a statement would have."""
        return len(self._open)

    def take(self) -> list[News]:
        """All that was said since this was asked last."""
        said, self._said = self._said, []
        return said

    def placed(self, charge: Charge, engine: str, request: Request) -> None:
        """A request was charged."""
        self._open[charge.number] = charge, engine
        session = key_of(request.session) if request.session else None
        self._say(Placed(_shown(charge, engine), request.model, request.prompt, session))

    def first_token(self, charge: Charge, work_tokens: float, took_s: float) -> None:
        """Its first token has come."""
        self._say(FirstToken(charge.number, work_tokens, took_s))

    def settled(self, charge: Charge, word: Settled) -> None:
        """It was answered in full."""
        if charge.number in self._open:
            self._say(word)

    def ended(self, charge: Charge) -> None:
        """It was released. Safe to call again."""
        if self._open.pop(charge.number, None) is not None:
            self._say(Ended(charge.number))

    def state(self) -> None:
        """Say all that is open."""
        self._say(Stated(tuple([_shown(charge, engine) for charge, engine in self._open.values()])))

    def _say(self, word: News) -> None:
        self._said.append(word)
        if len(self._said) == 1:
            self._wake()


def _shown(charge: Charge, engine: str) -> Open:
    return Open(
        charge.number,
        engine,
        charge.prefill_tokens,
        charge.prefill_s,
        charge.kv_tokens,
        charge.sequences,
        charge.in_prefill,
        charge.queues,
    )
