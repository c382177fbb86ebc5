"""What was seen decides where it was seen, the shadow cache elsewhere; who watches is told what becomes of it."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from routing.cache_lookup import CacheHit, CacheLookup
from routing.request import Request
from tests.routing.engines import TALK, ask, place, router_of, serve


@dataclass
class Notes:
    """A watch that writes down what it is told."""

    stated: list[tuple[object, ...]] = field(default_factory=list)

    def placed(self, engine: str) -> None:
        self.stated.append(("placed", engine))

    def computed(self) -> None:
        self.stated.append(("computed",))

    def answered(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        self.stated.append(("answered", prompt_tokens, cached_tokens))

    def left(self) -> None:
        self.stated.append(("left",))

    def over(self) -> None:
        self.stated.append(("over",))


def seeing(request: Request, prompt_tokens: int, seen: dict[int, CacheHit], watch: Notes | None = None) -> Request:
    return replace(request, lookup=CacheLookup(prompt_tokens, seen, frozenset(seen), watch or Notes()))


def test_what_was_observed_beats_what_was_sent() -> None:
    """The shadow cache believes in one engine, the events in another: the events win, to the token."""
    router = router_of(3)
    believed = serve(router, ask(TALK))
    other = (believed.engine.slot + 1) % 3
    seen = {slot: CacheHit(1936 if slot == other else 0) for slot in range(3)}
    placement = place(router, seeing(ask(TALK), 2000, seen), now_s=5.0)
    assert placement.engine.slot == other
    assert (placement.predicted.prompt_tokens, placement.predicted.cached_tokens) == (2000, 1936)


def test_engines_that_were_not_noticed_are_judged_by_their_shadow() -> None:
    """One engine in doubt beside two seen cold ones: what was sent there still counts."""
    router = router_of(3)
    believed = serve(router, ask(TALK))
    seen = {slot: CacheHit(0) for slot in range(3) if slot != believed.engine.slot}
    placement = place(router, seeing(ask(TALK), 2000, seen), now_s=5.0)
    assert placement.engine == believed.engine
    assert 0 < placement.predicted.cached_tokens <= 2000


def test_tokens_on_a_slower_medium_cost_their_loading() -> None:
    """Equally warm engines differ by how long the warmth takes to come; dear loading loses to computing anew."""
    router = router_of(2)
    quick = place(router, seeing(ask(TALK), 2000, {0: CacheHit(1984, 0.05), 1: CacheHit(1984)}), draw=0.0)
    assert quick.engine.slot == 1
    quick.release(1.0)
    slow = place(router, seeing(ask(TALK), 2000, {0: CacheHit(1984, 30.0), 1: CacheHit(0)}), now_s=9.0)
    assert slow.engine.slot == 1
