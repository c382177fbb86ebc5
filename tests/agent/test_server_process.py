"""What a vLLM server's own command tells of it."""

import json

from agent.server_process import facts_from_command, is_vllm_command

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "engine_id": "e-1"}


def test_a_prefill_server_is_read() -> None:
    """Short and long options, joined and apart, and what stands in the environment."""
    words = ["vllm", "serve", "m", "-tp", "4", "--pipeline_parallel_size=2", "--kv-cache-dtype", "fp8_e4m3"]
    words += ["--scheduling-policy", "priority", "--kv-transfer-config", json.dumps(NIXL), "--enforce-eager"]
    variables = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "0.0.0.0", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5601"}
    reported, takes_priority = facts_from_command(words, variables, "10.0.0.7")
    assert reported == {
        "tp": "4",
        "pp": "2",
        "kv_dtype": "fp8_e4m3",
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "engine_id": "e-1",
        "side_channel": "10.0.0.7:5601",
    }
    assert takes_priority


def test_ranks_that_step_together_are_named_by_their_coordinator() -> None:
    """With expert parallelism only; servers without an address share their ranks with no other."""
    words = ["vllm", "serve", "m", "-dp", "16", "-dpa", "10.0.0.1", "--data-parallel-rpc-port=13345"]
    assert facts_from_command(words, {}, "10.0.0.7")[0] == {"dp": "16"}
    group = {"dp": "16", "ep": True, "dp_group": "10.0.0.1:13345"}
    assert facts_from_command([*words, "-ep"], {}, "10.0.0.7")[0] == group
    plain = ["vllm", "serve", "m", "--enable-expert-parallel", "--data-parallel-size", "4"]
    assert facts_from_command(plain, {}, "10.0.0.7")[0] == {"dp": "4", "ep": True}


def test_mooncake_has_a_bootstrap_address_where_it_prefills() -> None:
    """On its own port, or vLLM's usual one; dotted options say the same as one JSON text."""
    words = ["vllm", "serve", "m", "--kv-transfer-config.kv_connector", "MooncakeConnector"]
    producer = [*words, "--kv-transfer-config.kv_role=kv_producer"]
    reported, _ = facts_from_command(producer, {}, "fd00::7")
    assert reported["bootstrap"] == "[fd00::7]:8998"
    assert "bootstrap" not in facts_from_command([*words, "--kv-transfer-config.kv_role", "kv_consumer"], {}, "a")[0]


def test_nonsense_says_nothing() -> None:
    """A config that is no JSON or nested without end, options without values, and `auto`."""
    for config in ("{", "[" * 100_000):
        words = ["vllm", "serve", "--kv-transfer-config", config, "--kv-cache-dtype", "auto", "--block-size"]
        assert facts_from_command(words, {}, "a") == ({}, False)


def test_a_server_is_distinguished_from_other_commands() -> None:
    """By what was started, not by who listens."""
    assert is_vllm_command(["python", "/venv/bin/vllm", "serve", "m"])
    assert is_vllm_command(["python", "-m", "vllm.entrypoints.openai.api_server"])
    assert not is_vllm_command(["python", "-m", "http.server"])
    assert not is_vllm_command(["nginx", "serve"])
