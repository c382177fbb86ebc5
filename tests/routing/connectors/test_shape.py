"""What all connectors share: checks of what pods answer, and addresses among facts."""

import pytest
from msgspec import Struct

from routing.connectors.shape import InvalidTransferParams, Port, parse_host_port, passed_through, validated


class Told(Struct):
    """Some parameters."""

    port: Port


def test_parameters_are_checked_by_type_and_bounds() -> None:
    """A text is no number, and no port is beyond 65535; further words do not matter."""
    assert validated({"port": 1, "more": 2}, Told).port == 1
    for bad in ({"port": "1"}, {"port": 0}, {"port": 65_536}, {"port": True}, {}, None, 7):
        with pytest.raises(InvalidTransferParams):
            validated(bad, Told)


def test_they_go_on_as_they_came() -> None:
    """Words we do not know included."""
    assert passed_through({"port": 1, "more": 2}) == {"port": 1, "more": 2}


def test_addresses_are_host_and_port() -> None:
    """IPv6 in brackets too; without one there is nothing to tell."""
    assert parse_host_port("a:1") == ("a", 1)
    assert parse_host_port("[::1]:2") == ("[::1]", 2)
    for bad in (None, "", "a", ":1", "a:b"):
        with pytest.raises(InvalidTransferParams):
            parse_host_port(bad)
