"""Where engines publish: vLLM's rule of who waits and who connects, ranks, and what pods tell."""

import aiohttp
import pytest

from gateway.config.kv_events import KvEventSource
from gateway.kv_index.pod_subscriptions import _Publisher, configured_endpoints, parse_endpoints, reported_endpoints
from gateway.kv_index.subscriber import EventEndpoint
from gateway.replica_sync.ipc_messages import EngineUpdate, PodUpdate

POD = PodUpdate("http://10.0.0.5:8000", 0, ("m",), (), ("m",), (EngineUpdate("http://10.0.0.5:8000"),))
RANKS = PodUpdate(
    "http://pod:8000", 0, ("m",), (), ("m",), tuple(EngineUpdate(f"http://pod:8000#{rank}", rank) for rank in range(2))
)


@pytest.mark.parametrize(
    ("endpoint", "source"),
    [
        ("tcp://*:5557", EventEndpoint("tcp://10.0.0.5:5557")),
        ("tcp://0.0.0.0:5557", EventEndpoint("tcp://0.0.0.0:5557", bind=True)),
        ("tcp://10.0.0.5:5557", EventEndpoint("tcp://10.0.0.5:5557")),
        ("tcp://10.0.0.9:5557", EventEndpoint("tcp://10.0.0.9:5557", bind=True)),
        ("tcp://[::]:5557", EventEndpoint("tcp://10.0.0.5:5557")),
        ("ipc:///run/kv", EventEndpoint("ipc:///run/kv")),
    ],
)
def test_who_waits_and_who_connects(endpoint: str, source: EventEndpoint) -> None:
    """A wildcard is the pod, which waits; another host's address is one to which the pod connects: ours."""
    assert configured_endpoints(POD, KvEventSource(POD.url, endpoint)) == {POD.url: source}


def test_a_rank_adds_itself_to_the_ports() -> None:
    """Each data-parallel rank is an engine with a publisher of its own."""
    entry = KvEventSource(RANKS.url, "tcp://*:5557", "tcp://*:5600", "kv")
    assert configured_endpoints(RANKS, entry) == {
        "http://pod:8000#0": EventEndpoint("tcp://pod:5557", "tcp://pod:5600", "kv"),
        "http://pod:8000#1": EventEndpoint("tcp://pod:5558", "tcp://pod:5601", "kv"),
    }


def test_what_a_pod_reports_has_the_ports_it_has() -> None:
    """By rank, ports as they are; ranks that do not publish, or otherwise than by ZeroMQ, have no source."""
    reported = {
        "0": _Publisher(True, "zmq", "tcp://*:41461", "tcp://*:41462", "kv"),
        "1": _Publisher(True, "null", "tcp://*:41463"),
    }
    assert parse_endpoints(RANKS, reported) == {
        "http://pod:8000#0": EventEndpoint("tcp://pod:41461", "tcp://pod:41462", "kv")
    }
    assert parse_endpoints(POD, {}) == {}


async def test_a_pod_that_does_not_answer_is_not_one_that_publishes_nothing(free_port: int) -> None:
    """Whom we follow is followed on while its pod is silent."""
    pod = PodUpdate(f"http://127.0.0.1:{free_port}", 0, (), (), (), ())
    async with aiohttp.ClientSession() as session:
        assert await reported_endpoints(pod, session) is None
