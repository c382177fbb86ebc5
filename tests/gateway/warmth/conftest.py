"""Ports for sockets that others must know before they are open, and time for machines that stand still now and then."""

import socket

import pytest

from gateway.warmth import subscriber, tokenizing


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers at all is waited for: in production a quiet engine's next event would ask again."""
    monkeypatch.setattr(subscriber, "REPLAY_WAIT_S", 60.0)
    monkeypatch.setattr(tokenizing, "POD_WAIT_S", 60.0)
