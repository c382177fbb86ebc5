"""Replication between gateways: the updates, their publisher, and their application to the local state.

Updates are values without text: engines and models by name, prompts by block hashes, sessions and responses by hashed
ids. They may be lost, late or duplicated, and engines may be unknown here: no update raises, and after a snapshot or a
`forget` the ledger holds exactly what that replica has open. How updates travel is not known here; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from routing.affinity import LastSeen, Whereabouts, key_of
from routing.blocks import Prompt
from routing.cost import CostBook
from routing.fleet import Fleet
from routing.learning import Learner, Usage, learn_warmth
from routing.ledger import Charge, Ledger
from routing.prefix_index import Trace, WarmIndex
from routing.request import Request
from routing.tokens import ExactCounter, TokenCounter


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


MOST_ORIGINS = 4096
"""More gateway processes than anybody runs; who could write to Redis could invent them without end."""

MOST_OPEN = 1 << 17
"""Per origin, far beyond what one process can serve."""

MOST_TOKENS, MOST_SECONDS, MOST_SEQUENCES = 1e9, 1e5, 1 << 14
"""No request is larger: a word that says so is an error."""


class Peer(Learner, Protocol):
    """What hears: the router, as far as others change it."""

    fleet: Fleet
    sessions: Whereabouts
    adapters: LastSeen[tuple[str, int], int]


class Heard:
    """One request that another router has open."""

    __slots__ = ("charge", "engine", "has_begun", "model", "trace")

    def __init__(self, charge: Charge, engine: str, model: str = "", trace: Trace | None = None) -> None:
        self.charge = charge
        self.engine = engine
        self.model = model
        self.trace = trace
        """None where only its charge was ever heard of."""
        self.has_begun = False


class Origin:
    """What was heard of one router."""

    __slots__ = ("has_missed", "heard_s", "number", "open")

    def __init__(self) -> None:
        self.open: dict[int, Heard] = {}
        self.number: int | None = None
        """Of its last batch."""
        self.has_missed = True
        """Whether some of its news were lost since it last stated what it has open."""
        self.heard_s = 0.0


class Hearing:
    """All other routers, by origin. One per router, which it changes as if their requests were its own."""

    def __init__(self, peer: Peer) -> None:
        self.heard = 0
        """Words taken."""
        self.strange = 0
        """Words that could not be taken: of engines that are not known here, or with numbers that cannot be."""
        self.gaps = 0
        """How often batches were missing."""
        self.spoke: Callable[[str, float], None] = lambda _engine, _now_s: None
        """Called with an engine that has answered another router's request, and when that was heard."""
        self._peer = peer
        self._origins: dict[int, Origin] = {}

    def __repr__(self) -> str:
        held = sum(len(origin.open) for origin in self._origins.values())
        return f"<Hearing {len(self._origins)} others with {held} open>"

    @property
    def names(self) -> Iterable[int]:
        """Of the others that were heard of late."""
        return self._origins.keys()

    @property
    def origins(self) -> int:
        """How many others there are."""
        return len(self._origins)

    def theirs(self) -> dict[int, tuple[int, float, float]]:
        """What others have on engines: slot to (sequences, prefill tokens not yet done, KV tokens)."""
        found: dict[int, tuple[int, float, float]] = {}
        for origin in self._origins.values():
            for heard in origin.open.values():
                charge = heard.charge
                running, prefill_tokens, kv_tokens = found.get(charge.slot, (0, 0.0, 0.0))
                prefill_tokens += charge.prefill_tokens if charge.in_prefill else 0.0
                found[charge.slot] = running + charge.sequences, prefill_tokens, kv_tokens + charge.kv_tokens
        return found

    def hear(self, name: int, number: int, news: Iterable[News], now_s: float) -> bool:
        """Take a batch of an origin, its `number`th. False where news were lost: have it state what is open.

        A batch that was heard before, or that comes behind a later one, is passed over.
        """
        origin = self._origin(name)
        if origin is None:
            return True
        origin.heard_s = now_s
        if origin.number is not None and number <= origin.number:
            return True
        if origin.number is not None and number > origin.number + 1:
            origin.has_missed = True
            self.gaps += 1
        origin.number = number
        for word in news:
            self._take(origin, word, now_s)
        return not origin.has_missed

    def forget(self, name: int, now_s: float) -> None:
        """An origin is gone: so is all that it had open."""
        origin = self._origins.pop(name, None)
        for heard in origin.open.values() if origin else ():
            self._end(heard, now_s)

    def forget_silent(self, before_s: float, now_s: float) -> Sequence[int]:
        """Forget the origins that were last heard before a moment; returns them."""
        silent = [name for name, origin in self._origins.items() if origin.heard_s < before_s]
        for name in silent:
            self.forget(name, now_s)
        return silent

    def _origin(self, name: int) -> Origin | None:
        origin = self._origins.get(name)
        if origin is None:
            if len(self._origins) >= MOST_ORIGINS:
                self.strange += 1
                return None
            origin = self._origins[name] = Origin()
        return origin

    def _take(self, origin: Origin, word: News, now_s: float) -> None:
        self.heard += 1
        match word:
            case Placed():
                self._place(origin, word, now_s)
            case FirstToken():
                self._begin(origin, word, now_s)
            case Settled():
                self._settle(origin, word, now_s)
            case Ended(number):
                if (heard := origin.open.pop(number, None)) is not None:
                    self._end(heard, now_s)
            case Stated():
                self._restate(origin, word, now_s)

    def _place(self, origin: Origin, word: Placed, now_s: float) -> None:
        heard = self._charge(origin, word.charge, now_s)
        prompt, peer = word.prompt, self._peer
        if heard is None:
            return
        slot = heard.charge.slot
        heard.model = word.model
        if word.session is not None:
            peer.sessions.put_key(word.session, slot)
        if _is_sane(prompt):
            heard.trace = peer.index.put(slot, prompt)
        if peer.fleet.roster(word.model).is_adapter:
            peer.adapters.put((word.model, slot), slot)

    def _begin(self, origin: Origin, word: FirstToken, now_s: float) -> None:
        heard, peer = origin.open.get(word.number), self._peer
        if heard is None or heard.has_begun:
            return
        self._start(heard, now_s)
        self.spoke(heard.engine, now_s)
        if word.work_tokens == 0:
            return  # Its prefill was done elsewhere.
        if 0 < word.work_tokens <= MOST_TOKENS and 0 < word.took_s <= MOST_SECONDS:
            peer.costs.observe_first_token(heard.charge.slot, word.work_tokens, word.took_s)
        else:
            self.strange += 1

    def _settle(self, origin: Origin, word: Settled, now_s: float) -> None:
        heard, peer = origin.open.get(word.number), self._peer
        if heard is None:
            return
        heard.has_begun = True
        charge = heard.charge
        if word.response is not None:
            peer.responses.put_key(word.response, charge.slot)
        if not _is_sane_settlement(word):
            self.strange += 1
            return
        if word.prompt_tokens or word.completion_tokens:
            self.spoke(heard.engine, now_s)
        if word.decode_s is not None:
            tokens = word.completion_tokens // charge.sequences - 1
            peer.costs.observe_decode(charge.slot, word.running, tokens, word.decode_s)
        trace = heard.trace
        if trace is None:
            return
        peer.index.computed(trace)
        if word.prompt_tokens and peer.fleet.knows(heard.model):
            usage = Usage(word.prompt_tokens, word.completion_tokens, word.cached_tokens)
            learn_warmth(peer, heard.model, trace, usage, _grown(trace.prompt, word))

    def _restate(self, origin: Origin, word: Stated, now_s: float) -> None:
        stated = {charge.number: charge for charge in word.open}
        for number in [number for number in origin.open if number not in stated]:
            self._end(origin.open.pop(number), now_s)
        for charge in word.open:
            heard = origin.open.get(charge.number) or self._charge(origin, charge, now_s)
            if heard is not None and not charge.in_prefill:
                self._start(heard, now_s)
        origin.has_missed = False

    def _charge(self, origin: Origin, said: Open, now_s: float) -> Heard | None:
        """Put a charge on our own ledger, once; None where it was there already, or cannot be."""
        if said.number in origin.open:
            return None
        engine = self._peer.fleet.engine(said.engine)
        if engine is None or not _is_sane_charge(said) or len(origin.open) >= MOST_OPEN:
            self.strange += 1
            return None
        charge = self._peer.ledger.charge(
            engine.slot,
            prefill_tokens=said.prefill_tokens,
            prefill_s=said.prefill_s,
            kv_tokens=said.kv_tokens,
            sequences=said.sequences,
            now_s=now_s,
            queues=said.queues,
        )
        heard = origin.open[said.number] = Heard(charge, said.engine)
        return heard

    def _start(self, heard: Heard, now_s: float) -> None:
        heard.has_begun = True
        self._peer.ledger.prefill_done(heard.charge, now_s)
        if heard.trace is not None:
            self._peer.index.computed(heard.trace)

    def _end(self, heard: Heard, now_s: float) -> None:
        peer = self._peer
        if heard.trace is not None and not heard.has_begun:
            peer.index.retract(heard.trace)
        peer.ledger.release(heard.charge, now_s)
        peer.recycle(heard.charge.slot)


def _is_sane_charge(said: Open) -> bool:
    return (
        0 <= said.prefill_tokens <= MOST_TOKENS
        and 0 <= said.prefill_s <= MOST_SECONDS
        and 0 <= said.kv_tokens <= MOST_TOKENS
        and 1 <= said.sequences <= MOST_SEQUENCES
    )


def _is_sane(prompt: Prompt) -> bool:
    count = len(prompt.blocks)
    return 0 < count <= len(prompt.ends) and prompt.ends[count - 1] <= prompt.size <= MOST_TOKENS


def _is_sane_settlement(word: Settled) -> bool:
    cached_tokens, decode_s = word.cached_tokens, word.decode_s
    return (
        0 <= word.prompt_tokens <= MOST_TOKENS
        and 0 <= word.completion_tokens <= MOST_TOKENS
        and (cached_tokens is None or 0 <= cached_tokens <= MOST_TOKENS)
        and 0 <= word.running <= MOST_TOKENS
        and (decode_s is None or 0 <= decode_s <= MOST_SECONDS)
    )


def _grown(prompt: Prompt, word: Settled) -> Prompt | None:
    if not word.grown_blocks:
        return None
    grown = Prompt(prompt.blocks + word.grown_blocks, prompt.ends, word.grown_size)
    return grown if _is_sane(grown) else None


class Bygone:
    """Takes old batches as `Hearing` takes new ones, with a ledger of its own that is thrown away."""

    def __init__(self, peer: Peer) -> None:
        self.fleet: Fleet = peer.fleet
        self.index: WarmIndex = peer.index
        self.costs: CostBook = peer.costs
        self.sessions: Whereabouts = peer.sessions
        self.responses: Whereabouts = peer.responses
        self.adapters: LastSeen[tuple[str, int], int] = peer.adapters
        self.voice: Voice | None = None
        self.ledger = Ledger()
        self._counter = peer.counter
        self._hearing = Hearing(self)
        self._names: set[int] = set()

    @property
    def heard(self) -> int:
        """Words taken."""
        return self._hearing.heard

    def counter(self, model: str) -> TokenCounter | ExactCounter:
        """The counter of the router that has just come."""
        return self._counter(model)

    def recycle(self, slot: int) -> None:
        """Slots are the router's affair."""

    def hear(self, name: int, number: int, news: Iterable[News]) -> None:
        """Take an old batch; those of an origin in their order."""
        self.ledger.reach(self.fleet.slot_count)
        self._names.add(name)
        self._hearing.hear(name, number, news, 0.0)

    def close(self) -> None:
        """The past has ended: what was never seen to begin is not believed to be anywhere."""
        for name in self._names:
            self._hearing.forget(name, 0.0)
