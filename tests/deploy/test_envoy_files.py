"""The Envoy configurations hold what docs/envoy.md says of them; `make check-deploy` has the real binary read them."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.limits import Limits
from tests.deploy.files import ENVOY, Document, documents

FILES = sorted(ENVOY.glob("*.yaml"))
LOOPBACK = "127.0.0.1"
DESTINATION = "x-gateway-destination-endpoint"


def in_file(path: Path) -> Document:
    (document,) = documents(path)
    return document


def front(document: Document) -> Any:
    """The HTTP connection manager."""
    return document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def cluster(document: Document, name: str) -> Any:
    (found,) = [one for one in document["static_resources"]["clusters"] if one["name"] == name]
    return found


def picker_filters(document: Document) -> list[Any]:
    """The ext_proc filters, in order."""
    return [one["typed_config"] for one in front(document)["http_filters"] if "ExternalProcessor" in str(one)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_client_cannot_name_its_own_pod(path: Path) -> None:
    """Metadata of the picker decides; where a header counts as well, it is taken off whoever comes in."""
    document = in_file(path)
    pods = cluster(document, "pods")
    stripped = [
        each["remove"]
        for one in front(document).get("early_header_mutation_extensions", [])
        for each in one["typed_config"]["mutations"]
    ]
    heeds_header = "use_http_header" in str(pods) or f"'header': '{DESTINATION}'" in str(pods)
    assert not heeds_header or DESTINATION in stripped


def test_the_prefill_pod_is_named_by_the_picker_only() -> None:
    """Where sidecars go by a header, a client's own is taken off at the door."""
    assert "x-prefiller-host-port" in str(front(in_file(ENVOY / "sidecars.yaml"))["early_header_mutation_extensions"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_picker_fails_closed_and_its_health_is_known(path: Path) -> None:
    """Nobody is let past policy because nobody decides; who is away is known before a request finds out."""
    document = in_file(path)
    first = picker_filters(document)[0]
    assert first["failure_mode_allow"] is False
    hearth = cluster(document, "hearth")
    assert hearth["health_checks"][0]["grpc_health_check"]
    assert hearth["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    assert "http2_protocol_options" in str(hearth["typed_extension_protocol_options"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_another_picker_is_called_where_one_goes(path: Path) -> None:
    """Of any number of requests at once; three, if Envoy is not told. Never of one that has been asked already."""
    document = in_file(path)
    policy = picker_filters(document)[0]["grpc_service"]["retry_policy"]
    assert {"connect-failure", "refused-stream"} <= set(policy["retry_on"].split(","))
    assert policy["retry_host_predicate"][0]["name"] == "envoy.retry_host_predicates.previous_hosts"
    (threshold,) = cluster(document, "hearth")["circuit_breakers"]["thresholds"]
    assert threshold["max_retries"] == threshold["max_requests"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bodies_are_as_large_as_the_gateway_takes_them(path: Path) -> None:
    """A buffered body that Envoy refuses never reaches the picker, whose word about it would be better."""
    document = in_file(path)
    if picker_filters(document)[0]["processing_mode"]["request_body_mode"] == "BUFFERED":
        listener = document["static_resources"]["listeners"][0]
        assert listener["per_connection_buffer_limit_bytes"] >= Limits().max_body_bytes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_listens_beyond_this_machine_unasked(path: Path) -> None:
    """As with the gateway's own defaults: whoever opens a port to others does so on purpose."""
    document = in_file(path)
    listeners = [one["address"] for one in document["static_resources"]["listeners"]]
    for address in (document["admin"]["address"], *listeners):
        assert address["socket_address"]["address"] == LOOPBACK


def test_each_mode_is_what_its_name_says() -> None:
    """By file: how the request's body, the answer's body and copies go to the picker."""
    modes = {
        path.stem: [
            (
                one["processing_mode"]["request_body_mode"],
                one["processing_mode"]["response_body_mode"],
                one.get("observability_mode", False),
            )
            for one in picker_filters(in_file(path))
        ]
        for path in FILES
    }
    cheap, full = ("BUFFERED", "NONE", False), ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", False)
    assert modes == {
        "own": [cheap],
        "sidecars": [cheap],
        "observed": [cheap, ("NONE", "STREAMED", True)],
        "gie": [full],
    }


def test_what_is_alike_is_alike() -> None:
    """The files differ in what their heads say, and in nothing else by accident."""
    own = in_file(ENVOY / "own.yaml")
    for path in FILES:
        document = in_file(path)
        assert cluster(document, "hearth") == cluster(own, "hearth")
        assert document["overload_manager"] == own["overload_manager"]
        assert front(document)["access_log"] == front(own)["access_log"]
        assert front(document)["stream_idle_timeout"] == front(own)["stream_idle_timeout"]
