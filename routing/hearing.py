"""What other routers say, applied to our own ledger, warm index and costs: their requests count as ours do.

Words may be lost, late or told twice, and engines may be unknown here: nothing that can be said raises, and after an
origin has stated what it has open, or is forgotten, the ledger holds exactly that of it. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from routing.affinity import LastSeen, Whereabouts
from routing.blocks import Prompt
from routing.fleet import Fleet
from routing.learning import Learner, Usage, learn_warmth
from routing.ledger import Charge
from routing.news import Ended, FirstToken, News, Open, Placed, Settled, Stated
from routing.warmth import Trace

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
