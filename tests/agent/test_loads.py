"""Datagrams of engines: the last word of each counts, and nothing that comes can fill memory or do harm."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.loads import MAX_ENGINES, STALE_S, LoadListener
from routing.pod_record import EngineLoad


class Scene:
    """Loads under a clock of our own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.news = 0
        self.loads = LoadListener(lambda: self.now_s, self.note)

    def note(self) -> None:
        self.news += 1

    def log_event(
        self, port: int = 8000, rank: int = 0, running: int = 1, waiting: int = 0, kv_usage: float = 0.5
    ) -> None:
        word = {"port": port, "rank": rank, "running": running, "waiting": waiting, "kv_usage": kv_usage}
        self.loads.datagram_received(json.dumps(word).encode(), ("127.0.0.1", 9))


def test_the_last_update_of_each_engine_counts() -> None:
    """By rank, with its age; what says the same again is no news."""
    scene = Scene()
    scene.log_event(running=1)
    scene.log_event(rank=1, waiting=2)
    scene.log_event(running=3)
    scene.log_event(running=3)
    scene.log_event(port=8001)
    scene.now_s += 0.25
    assert scene.loads.loads_of(8000) == (EngineLoad(0, 3, 0, 0.5, 0.25), EngineLoad(1, 1, 2, 0.5, 0.25))
    assert scene.news == 4


def test_old_updates_and_those_of_servers_gone_are_not_reported() -> None:
    """Who has said nothing for long may be anything by now."""
    scene = Scene()
    scene.log_event()
    scene.log_event(port=8001)
    scene.loads.forget(8001)
    assert scene.loads.loads_of(8001) == ()
    scene.now_s += STALE_S
    assert scene.loads.loads_of(8000) == ()


def test_memory_is_bounded() -> None:
    """Whoever can reach the port can invent engines, but not endlessly."""
    scene = Scene()
    for port in range(1, MAX_ENGINES + 11):
        scene.log_event(port=port)
    assert scene.loads.invalid == 10
    assert scene.loads.loads_of(MAX_ENGINES + 5) == ()


@given(st.binary(max_size=100))
def test_what_cannot_be_read_is_counted(stated: bytes) -> None:
    """And dropped."""
    scene = Scene()
    scene.loads.datagram_received(stated, ("127.0.0.1", 9))
    assert scene.loads.invalid == 1
    assert scene.news == 0
