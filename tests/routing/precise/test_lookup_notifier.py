"""What becomes of a looked-up request reaches the listener of its lookup, step by step."""

from routing.cache_lookup import CacheHit
from routing.precise.lookup_notifier import LookupNotifier
from routing.request import Usage
from tests.routing.engines import TALK, ask, place, router_of
from tests.routing.test_cache_lookup import Notes, seeing


def test_every_step_is_reported_to_listeners() -> None:
    """Placed, computed, answered, left; a request that fails is left at once, and may be placed again."""
    router, notes = router_of(2), Notes()
    router.subscribe(LookupNotifier())
    request = seeing(ask(TALK), 2000, {0: CacheHit(0), 1: CacheHit(0)}, notes)
    first = place(router, request)
    first.release(0.5)
    second = place(router, request, avoid=first.engine.pod)
    second.first_token(1.0)
    second.settle(Usage(2000, 5, 1984), 2.0)
    second.release(2.0)
    assert notes.stated == [
        ("placed", first.engine.name),
        ("left",),
        ("placed", second.engine.name),
        ("computed",),
        ("answered", 2000, 1984),
        ("left",),
    ]


def test_a_request_that_was_not_looked_up_reports_nothing() -> None:
    """Others of the same router are passed over."""
    router = router_of(1)
    router.subscribe(LookupNotifier())
    placement = place(router, ask(TALK))
    placement.first_token(0.1)
    placement.settle(Usage(2000, 5, 0), 1.0)
    placement.release(1.0)
    assert router.observers is not None
    assert router.observers.errors == 0
