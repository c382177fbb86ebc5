"""What a scrape shows that is not ours."""

from gateway.fleet.external_load import observe, ours
from gateway.fleet.scrape import EngineReading, Page
from routing.decision.router import Router
from routing.ledger import NOTHING_FOREIGN, Foreign
from tests.routing.engines import add_pod, ask, place, router_of

URL = "http://0"


def seen(router: Router, *readings: EngineReading) -> list[Foreign]:
    """What is held for foreign after a page of these readings, by rank, with what is now ours."""
    observe(router, URL, Page(dict(enumerate(readings))), ours(router, URL), 7.0)
    return list(router.ledger.foreign)


def test_what_is_ours_is_not_counted_twice() -> None:
    """Of five requests and half of the memory two are ours; those who wait are foreign before those who run."""
    router = router_of(1)
    held = [place(router, ask(sequences=2))]
    own = ours(router, URL)[0]
    (foreign,) = seen(router, EngineReading(running=3, waiting=2, kv_usage=0.5))
    assert foreign == Foreign(running=3, waiting=2, kv_tokens=50_000 - own[1], at_s=7.0)
    held.append(place(router, ask(sequences=9)))
    (foreign,) = seen(router, EngineReading(running=3, waiting=2, kv_usage=0.0))
    assert foreign == Foreign(at_s=7.0)


def test_what_was_ours_while_the_page_was_on_its_way_is_not_foreign() -> None:
    """Whether it has ended since the page was asked for, or has begun."""
    router = router_of(1)
    idle = ours(router, URL)
    placement = place(router, ask())
    busy = ours(router, URL)
    observe(router, URL, Page({0: EngineReading(running=1)}), idle, 7.0)
    assert router.ledger.foreign == [Foreign(at_s=7.0)]
    placement.release(1.0)
    observe(router, URL, Page({0: EngineReading(running=1)}), busy, 8.0)
    assert router.ledger.foreign == [Foreign(at_s=8.0)]


def test_an_engine_of_several_has_the_reading_of_its_rank() -> None:
    """One that its page does not name keeps what was seen before; what a store has found is told too."""
    router = router_of(0)
    add_pod(router, URL, ranks=(0, 1, 2))
    foreign = seen(router, EngineReading(running=1, store_asked=0), EngineReading(running=4, store_asked=0))
    assert [each.running for each in foreign] == [1, 4, 0]
    assert foreign[2] == NOTHING_FOREIGN
    seen(router, EngineReading(), EngineReading(store_asked=10_000, store_found=10_000))
    assert set(router.stores.shares) == {1}


def test_a_pod_that_has_left_while_it_was_asked_is_nobodys() -> None:
    """Nothing is told of it."""
    router = router_of(0)
    assert ours(router, URL) == {}
    assert seen(router, EngineReading(running=1)) == []
