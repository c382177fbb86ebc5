"""What others have put on a pod's engines: what a scrape shows there and we did not put there ourselves."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.fleet.scrape import Page
from routing.decision.router import Router
from routing.ledger import Foreign
from routing.stores import StoreCount

Ours = Mapping[int, tuple[int, float]]
"""Slot to our running sequences and KV tokens."""


def ours(router: Router, url: str) -> Ours:
    """What we have on the engines of a pod."""
    known, ledger = router.fleet.pod(url), router.ledger
    slots = [engine.slot for engine in known.engines] if known else []
    return {slot: (ledger.running[slot], ledger.kv_tokens[slot]) for slot in slots}


def observe(router: Router, url: str, page: Page, before: Ours, now_s: float) -> None:
    """Tell the router what a page shows beyond ours: what we had `before` it was asked for or have now, the larger."""
    known, after = router.fleet.pod(url), ours(router, url)
    for engine in known.engines if known else ():
        reading = page.engines.get(engine.rank) if engine.rank is not None else next(iter(page.engines.values()), None)
        if reading is None:
            continue
        running, kv_tokens = map(max, before.get(engine.slot, (0, 0.0)), after[engine.slot])
        there = (reading.running or 0.0) + (reading.waiting or 0.0)
        kv_there = (reading.kv_usage or 0.0) * (engine.kv_tokens or 0)
        foreign = Foreign(
            running=max(0.0, there - running),
            waiting=max(0.0, min(reading.waiting or 0.0, there - running)),
            kv_tokens=max(0.0, kv_there - kv_tokens),
            at_s=now_s,
        )
        router.observe_load(engine.slot, foreign)
        router.stores.observe(engine.slot, StoreCount(reading.store_asked, reading.store_found))
