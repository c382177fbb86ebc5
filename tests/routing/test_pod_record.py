"""What agents and gateways say to each other by way of Redis: read as written, refused with a reason."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.facts import PodFacts, Role
from routing.pod_record import (
    ENGINE_COUNTERS,
    MAX_PODS,
    MAX_RECORD_BYTES,
    AgentRecord,
    EngineLoad,
    GpuReading,
    InvalidRecord,
    NodeReading,
    RdmaPort,
    RegisteredPod,
    RegistrationState,
    is_agent_name,
    known_stages,
    read_record,
    record_key,
    record_keys_pattern,
    write_record,
)
from routing.server_settings import NO_SETTINGS, ServerSettings

POD = RegisteredPod(
    "http://10.0.0.7:8000",
    PodFacts(role=Role.PREFILL, kv_connector="NixlConnector", side_channel="10.0.0.7:5600", models=("qwen",), tp=2),
    RegistrationState.DRAINING,
    takes_priority=True,
    loads=(EngineLoad(0, running=3, waiting=1, kv_usage=0.25, age_s=0.01), EngineLoad(1)),
)

READING = NodeReading((GpuReading(0.5, 1, 2, 300.0),), (RdmaPort("mlx5_0", 1, is_up=True),))


def test_what_was_written_is_read() -> None:
    """A full record and an empty one survive the wire."""
    for record in (
        AgentRecord("node-7", 12, 15.0, (POD, RegisteredPod("https://a:443")), life=99),
        AgentRecord("a", 0, 0.5),
        AgentRecord(
            "a", 1, 15.0, node=NodeReading((GpuReading(0.5, 1, 2, 300.0),), (RdmaPort("mlx5_0", 1, is_up=True),))
        ),
    ):
        assert read_record(write_record(record)) == record


def test_words_of_a_later_writer_are_passed_over() -> None:
    """Rolling upgrades: fields and facts that this version does not know cost nothing."""
    stated = json.loads(write_record(AgentRecord("a", 1, 15.0, (POD,))))
    stated["mood"] = "good"
    stated["pods"][0]["colour"] = "red"
    stated["pods"][0]["facts"]["quantum"] = True
    assert read_record(json.dumps(stated).encode()).pods == (POD,)


def test_a_record_without_a_reading_is_that_of_before() -> None:
    """A gateway of the version before reads the record of an agent without GPUs unchanged."""
    assert b"node" not in write_record(AgentRecord("a", 1, 15.0, (POD,)))


def changed(**words: Any) -> bytes:
    return json.dumps({"v": 1, "agent": "a", "beat": 1, "ttl_s": 15.0, "pods": [], **words}).encode()


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (b"{", "truncated"),
        (b"\xff\xfe", "JSON"),
        (changed(v=2), "v: is 2"),
        (changed(agent="a*b"), "agent"),
        (changed(pods=[{"url": "http://a:1", "load": [{"running": 10**400}]}]), "pods"),
        (changed(pods=[{"url": "http://a:1", "load": [{"waiting": -1}]}]), "waiting"),
        (changed(pods=[{"url": "http://a:1", "load": [{"kv_usage": 1e308}]}]), "kv_usage"),
        (changed(pods=[{"url": "http://a:1", "load": [{"age_s": -5.0}]}]), "age_s"),
        (changed(node={"gpus": [{"memory_used_bytes": 10**400}]}), "node"),
        (changed(ttl_s=0), "ttl_s"),
        (changed(ttl_s=1e9), "ttl_s"),
        (changed(pods=[{"url": "ftp://x"}]), r"pods\[0\]"),
        (changed(pods=[{"url": "http://x:1", "facts": {"tp": -1}}]), "tp"),
        (changed(pods=[{"url": "http://x:1", "state": "asleep"}]), "state"),
        (changed(pods=[{"url": "http://x:1"}] * (MAX_PODS + 1)), "pods"),
        (b" " * (MAX_RECORD_BYTES + 1), "bytes"),
    ],
)
def test_a_bad_record_says_what_is_wrong_with_it(written: bytes, named: str) -> None:
    """Whoever wrote it can be told."""
    with pytest.raises(InvalidRecord, match=named):
        read_record(written)


def test_nothing_is_written_that_no_one_would_read() -> None:
    """An agent with too many pods hears of it at once."""
    with pytest.raises(InvalidRecord):
        write_record(AgentRecord("a", 1, 15.0, (POD,) * (MAX_PODS + 1)))


def test_what_describes_an_engine_gives_way_to_its_registration() -> None:
    """Counters of many ranks must not keep the record of a node from being written."""
    counters = dict.fromkeys(ENGINE_COUNTERS, 123456789.123)
    loads = tuple(EngineLoad(rank, 3, 1, 0.25, 0.01, counters, {"in_progress": 1}) for rank in range(256))
    settings = ServerSettings({"dtype": "bfloat16"})
    written = write_record(AgentRecord("a", 1, 15.0, (replace(POD, loads=loads, settings=settings),)))
    (pod,) = read_record(written).pods
    assert pod.facts == POD.facts
    assert len(pod.loads) == 256
    assert (pod.loads[7].running, pod.loads[7].counters, pod.settings) == (3, {}, NO_SETTINGS)


def test_counts_that_cannot_be_written_again_are_dropped() -> None:
    """A datagram of any process of the node may hold them."""
    assert known_stages({"in_progress": 10**30, "completed_waiting": 2}) == {"completed_waiting": 2}


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(repr).map(str.encode))
def test_nonsense_is_rejected(written: bytes) -> None:
    """Whatever stands in the key, there is no other error."""
    with pytest.raises(InvalidRecord):
        read_record(written)


def test_keys_are_found_by_their_pattern() -> None:
    """A prefix with a star in it matches itself only."""
    assert record_key("a*:", "node-1") == "a*:hearth:agent:node-1"
    assert record_keys_pattern("a*:") == "a\\*:hearth:agent:*"
    assert is_agent_name("node-1.rack_2")
    assert not is_agent_name("node:1")
    assert not is_agent_name("")
