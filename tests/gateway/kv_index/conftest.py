"""Ports for sockets that others must know before they are open, and time for machines that stand still now and then."""

import pytest

from gateway.kv_index import subscriber, tokenizer
from tests.gateway.kv_index import redis_servers


@pytest.fixture
def free_port() -> int:
    return redis_servers.free_port()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers at all is waited for: in production a quiet engine's next event would ask again."""
    monkeypatch.setattr(subscriber, "REPLAY_WAIT_S", 60.0)
    monkeypatch.setattr(tokenizer, "POD_TIMEOUT_S", 60.0)
