"""Configurations of deploy/envoy on another occasion: same filters, other addresses. No Envoy runs here."""

from pathlib import Path
from typing import Any

import pytest

from simulator.envoy import HostPort, bootstrap
from tests.sources import ROOT

FILES = sorted((ROOT / "deploy" / "envoy").glob("*.yaml"))
PODS = ("http://127.0.0.1:8101", "http://10.0.0.2:8102")


def ends(config: dict[str, Any], name: str) -> list[Any]:
    (found,) = [one for one in config["static_resources"]["clusters"] if one["name"] == name]
    assigned = found.get("load_assignment", {"endpoints": [{"lb_endpoints": []}]})
    return [
        tuple(end["endpoint"]["address"]["socket_address"].values()) for end in assigned["endpoints"][0]["lb_endpoints"]
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_addresses_are_those_of_the_occasion(path: Path) -> None:
    """Pickers and pods take the place of the file's own, and any port is listened on, on this machine only."""
    config = bootstrap(path, ["127.0.0.1:9003", "127.0.0.1:9004"], PODS)
    assert ends(config, "hearth") == [("127.0.0.1", 9003), ("127.0.0.1", 9004)]
    assert ends(config, "pods") == ([("127.0.0.1", 8101), ("10.0.0.2", 8102)] if path.stem == "gie" else [])
    listeners = [one["address"] for one in config["static_resources"]["listeners"]]
    for address in (config["admin"]["address"], *listeners):
        assert address == {"socket_address": {"address": "127.0.0.1", "port_value": 0}}


@pytest.mark.parametrize("words", ["http://[::1]:8000", "[::1]:8000"])
def test_a_place_is_read_from_its_words(words: str) -> None:
    """With a scheme or without, and without the brackets of an IPv6 host, as Envoy wants it."""
    assert HostPort.parse(words) == HostPort("::1", 8000)
