"""Stores behind the engines: learned from their counters, expected of cold prompts."""

import pytest

from routing.stores import KvStores, StoreCounters, with_stores
from tests.routing.engines import TALK, ask, place, router_of


def test_a_share_is_learned_from_what_was_counted_between_scrapes() -> None:
    """The first figures at once, later ones slowly; too few say nothing; no store is no share."""
    stores = KvStores()
    stores.observe(1, StoreCounters(500.0, 500.0))
    assert stores.shares == {}
    stores.observe(1, StoreCounters(10_000.0, 5_000.0))
    assert stores.shares == {1: 0.5}
    stores.observe(1, StoreCounters(20_000.0, 15_000.0))
    assert stores.shares[1] == pytest.approx(0.6)
    stores.observe(2, StoreCounters(50_000.0, 0.0))
    assert 2 not in stores.shares


def test_counters_that_fell_are_another_life() -> None:
    """What the store had before a restart is not what it has now."""
    stores = KvStores()
    stores.observe(1, StoreCounters(10_000.0, 10_000.0))
    stores.observe(1, StoreCounters(2_000.0, 500.0))
    assert stores.shares == {1: 0.25}
    stores.observe(1, StoreCounters(10.0, 10.0))
    assert stores.shares == {}


def test_what_is_fetched_is_not_computed() -> None:
    """Of what an engine does not hold; the last token is computed in any case."""
    warm, work = with_stores({7: 0.5}, (3, 7), [0.0, 401.0], [1000.0, 600.0], 1001.0)
    assert (warm, work) == ([0.0, 700.5], [1000.0, 300.0])
    assert with_stores({7: 1.0}, (7,), [0.0], [1000.0], 1001.0) == ([1000.0], [0.0])


def test_an_engine_with_a_good_store_is_preferred_to_a_cold_one() -> None:
    """It has less to compute, and the receipt says so."""
    router = router_of(2)
    (slot,) = [engine.slot for engine in router.fleet.pods[1].engines]
    router.stores.observe(slot, StoreCounters(100_000.0, 90_000.0))
    placement = place(router, ask(TALK))
    assert placement.engine.slot == slot
    assert placement.predicted.cached_tokens > 0.8 * placement.predicted.prompt_tokens
    router.remove_pod(placement.engine.pod)
    placement.release(1.0)
    assert router.stores.shares == {}
