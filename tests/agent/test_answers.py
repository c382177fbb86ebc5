"""What a vLLM server's answers tell of it, and that nothing else is read into them."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.server import (
    facts_from_bootstrap,
    facts_from_event_sources,
    facts_from_metrics,
    facts_from_models,
    facts_from_server_info,
    facts_from_version,
)

PAGE = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="32",cache_dtype="fp8_e5m2",engine="0",num_gpu_blocks="512"} 1.0
vllm:num_requests_running{engine="0",model_name="tinyqwen"} 0.0
vllm:num_requests_running{engine="1",model_name="tinyqwen"} 0.0
"""
"""As vLLM 0.32 writes it, two engines of a data-parallel server."""


def body(stated: Any) -> bytes:
    return json.dumps(stated).encode()


def test_answers_are_read_as_vllm_gives_them() -> None:
    """Each in the shape that vLLM 0.32 was seen to give."""
    assert facts_from_version(b'{"version":"0.32.0"}') == {"version": "0.32.0"}
    assert facts_from_models(body({"data": [{"id": "a", "root": "/m"}, {"id": "lora"}]})) == {"models": ["a", "lora"]}
    assert facts_from_metrics(PAGE) == {"dp": 2, "block_size": "32", "kv_dtype": "fp8_e5m2"}
    source = {"publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv"}
    assert facts_from_event_sources(body({"0": source}), "10.0.0.7") == {"kv_events": "tcp://10.0.0.7:5557"}
    query = {"0": {"engine_id": "75b1fe15", "worker_addr": {"0": {"0": "tcp://127.0.0.1:45945"}}}}
    assert facts_from_bootstrap(body(query)) == {"engine_id": "75b1fe15"}


def test_the_servers_own_account_is_read() -> None:
    """In development mode a server tells its whole configuration."""
    config = {
        "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1},
        "cache_config": {"cache_dtype": "auto"},
        "scheduler_config": {"policy": "priority"},
        "kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "engine_id": "e"},
    }
    stated = {"vllm_config": config, "vllm_env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": 5601}}
    reported, takes_priority = facts_from_server_info(body(stated), "h")
    assert reported == {
        "tp": 2,
        "pp": 1,
        "dp": 1,
        "kv_connector": "NixlConnector",
        "kv_role": "kv_consumer",
        "engine_id": "e",
        "side_channel": "h:5601",
    }
    assert takes_priority


@given(st.none() | st.binary(max_size=80) | st.recursive(st.none() | st.text(), st.lists).map(body))
def test_whatever_is_answered_is_read_or_not(answer: bytes | None) -> None:
    """Something else may listen there: it says nothing, and breaks nothing."""
    assert facts_from_version(answer) == {}
    assert facts_from_models(answer) == {}
    assert facts_from_metrics(answer) == {}
    assert facts_from_event_sources(answer, "h") == {}
    assert facts_from_bootstrap(answer) == {}
    assert facts_from_server_info(answer, "h") == ({}, False)
