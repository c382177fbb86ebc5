"""What diagnosis is told of servers: from settings, discovery and nodes, without anything that must not be shown."""

import pytest

from gateway.diagnosis.server_facts import (
    UNSET,
    build_facts,
    engine_flags,
    environment_facts,
    hardware_facts,
    shown_model,
    without_speculation,
)
from gateway.discovery.source import ServerReport
from routing.facts import NO_FACTS, PodFacts
from routing.pod_record import GpuReading, NodeReading, RdmaPort
from routing.server_settings import NO_SEED, NO_SETTINGS, ServerSettings

SETTINGS = ServerSettings(
    options={
        "enable-chunked-prefill": "false",
        "max-num-batched-tokens": "2048",
        "speculative-config.method": "ngram",
        "kv-offloading-size": "4.5",
    },
    environment={"UCX_TLS": "rc"},
    hash_seed="ab" * 6,
)


def test_flags_come_from_the_command_line_with_the_defaults_of_vllm() -> None:
    """An option that was not given has its default only where the command line was read."""
    flags = engine_flags(SETTINGS, PodFacts(tp=4, kv_connector="NixlConnector"), 5.0)
    assert flags is not None
    assert (flags.read_at_s, flags.chunked_prefill, flags.max_num_batched_tokens) == (5.0, False, 2048)
    assert (flags.speculative_method, flags.offloading_gib, flags.scheduling_policy) == ("ngram", 4.5, "fcfs")
    assert (flags.prompt_tokens_details, flags.dp, flags.connector) == (False, 1, "NixlConnector")
    reported = engine_flags(ServerSettings(options={"max-num-seqs": "8"}), NO_FACTS, 5.0)
    assert reported is not None
    assert (reported.max_num_seqs, reported.prompt_tokens_details) == (8, None)
    of_file = engine_flags(ServerSettings(options={"has-config-file": "true"}, hash_seed=NO_SEED), PodFacts(tp=2), 5.0)
    assert of_file is not None
    assert (of_file.tp, of_file.scheduling_policy) == (2, None)


def test_what_is_not_known_is_none() -> None:
    """Not a record of nothing."""
    assert engine_flags(NO_SETTINGS, NO_FACTS, 5.0) is None
    assert build_facts(NO_SETTINGS, NO_FACTS, 5.0) is None
    assert environment_facts(NO_SETTINGS, 5.0) is None
    assert hardware_facts(None, NO_FACTS, 5.0) is None


def test_the_environment_has_digests_of_seeds() -> None:
    """One that is not set can be told from one that could not be read."""
    found = environment_facts(SETTINGS, 5.0)
    assert found is not None
    assert (found.values, found.digests) == ({"UCX_TLS": "rc"}, {"PYTHONHASHSEED": "ab" * 6})
    unset = environment_facts(ServerSettings(hash_seed=NO_SEED), 5.0)
    assert unset is not None
    assert unset.digests == {"PYTHONHASHSEED": UNSET}


def test_active_ports_share_the_bandwidth_of_the_node() -> None:
    """Those that are down have none."""
    node = NodeReading((GpuReading(0.5),), (RdmaPort("mlx5_0", 1, True), RdmaPort("mlx5_1", 1, False)))
    found = hardware_facts(ServerReport("node-7", 1.0, node=node), PodFacts(gpus=2, nic_gbit_s=400), 5.0)
    assert found is not None
    assert (found.host, found.gpus) == ("node-7", 1)
    assert [(port.name, port.state, port.gbit_s) for port in found.ports] == [
        ("mlx5_0/1", "active", 400.0),
        ("mlx5_1/1", "down", None),
    ]


def test_an_engine_without_counters_of_speculation_does_not_speculate() -> None:
    """What its command line says stands."""
    flags = without_speculation(None, has_counters=False, read_at_s=5.0)
    assert flags is not None
    assert flags.speculative_method == ""
    assert without_speculation(None, has_counters=True, read_at_s=5.0) is None
    read = engine_flags(SETTINGS, NO_FACTS, 5.0)
    assert without_speculation(read, has_counters=False, read_at_s=5.0) == read


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [("qwen", True), ("org/model-7b", True), ("/mnt/SECRET/m", False), ("s3://key@b/m", False), ("a/b/c", False)],
)
def test_a_model_that_is_a_path_is_shown_as_a_digest(name: str, *, is_shown: bool) -> None:
    """Equal ones alike."""
    assert (shown_model(name) == name) is is_shown
    assert shown_model(name) == shown_model(name)
    assert "SECRET" not in shown_model(name)
