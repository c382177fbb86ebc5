"""Observers are called in order after the charge; one that raises is counted, and stops nothing."""

from __future__ import annotations

from typing import Any

from routing.decision.router import Router
from routing.request import Usage
from scorers.registry import routings
from tests.routing.engines import add_pod, ask, place


class Broken:
    """Raises whatever it is called with."""

    name = "broken"

    def _raise(self, *_: Any) -> None:
        raise KeyError(self.name)

    placed = first_token = settled = ended = _raise


class Recorder:
    """Keeps the names of events, and what the ledger held at each."""

    name = "recorder"

    def __init__(self, router: Router) -> None:
        self.events: list[tuple[str, int]] = []
        self._router = router

    def _note(self, event: str) -> None:
        self.events.append((event, self._router.ledger.running[0]))

    def placed(self, *_: Any) -> None:
        self._note("placed")

    def first_token(self, *_: Any) -> None:
        self._note("first_token")

    def settled(self, *_: Any) -> None:
        self._note("settled")

    def ended(self, *_: Any) -> None:
        self._note("ended")


def serve_one(router: Router) -> None:
    placement = place(router, ask())
    placement.first_token(0.1)
    placement.settle(Usage(2000, 5, 0), 1.0)
    placement.release(1.0)


def test_the_state_is_charged_before_observers_are_called() -> None:
    """Each event finds the ledger as the event leaves it."""
    router = Router(routings()["warm"])
    add_pod(router, "http://0")
    recorder = Recorder(router)
    router.subscribe(recorder)
    serve_one(router)
    assert recorder.events == [("placed", 1), ("first_token", 1), ("settled", 1), ("ended", 0)]


def test_an_observer_that_raises_is_counted_and_stops_nothing() -> None:
    """Requests are served and released, later observers are called, and each exception is reported by name."""
    reported: list[tuple[str, str]] = []
    router = Router(routings()["warm"], report=lambda name, error: reported.append((name, type(error).__name__)))
    add_pod(router, "http://0")
    recorder = Recorder(router)
    router.subscribe(Broken(), recorder)
    serve_one(router)
    assert router.ledger.is_empty()
    assert [event for event, _ in recorder.events] == ["placed", "first_token", "settled", "ended"]
    assert router.observers is not None
    assert router.observers.errors == 4
    assert reported == [("broken", "KeyError")] * 4


def test_exceptions_are_counted_where_no_report_is_read() -> None:
    """A router by itself has no log."""
    router = Router(routings()["warm"])
    add_pod(router, "http://0")
    router.subscribe(Broken())
    place(router, ask()).release(1.0)
    assert router.observers is not None
    assert router.observers.errors == 2
