"""Ports for sockets that others must know before they are open."""

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port
