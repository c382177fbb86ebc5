"""The plugin inside vLLM: what it sends, how seldom, and that nothing of it reaches the engine.

vLLM stands in another environment, so its base class is stood in for here; tests/vllm/test_agent.py runs the real one.
"""

import importlib
import json
import socket
import sys
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.sources import ROOT

MODULE = "hearth_vllm_plugin"

FOLDER = ROOT / "packages" / "hearth-vllm-plugin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with a clock of our own."""
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["vllm.v1.metrics.loggers"], "StatLoggerBase", object, raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module(MODULE)
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    made: list[Any] = []

    def tells(rank: int = 0) -> Any:
        made.append(module.AgentStatLogger(None, rank))
        return made[-1]

    yield SimpleNamespace(module=module, clock=clock, tells=tells)
    for each in made:
        if each._socket is not None:
            each._socket.close()
    sys.modules.pop(MODULE, None)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where an agent would listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        monkeypatch.setenv("HEARTH_AGENT_LOAD_LISTEN", f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setattr(sys, "argv", ["vllm", "serve", "m", "--port", "8103"])
        yield listening


def stats(running: int, waiting: int = 0) -> SimpleNamespace:
    return SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=0.25)


def received(listening: socket.socket) -> list[Any]:
    found = []
    while True:
        try:
            found.append(json.loads(listening.recv(1000)))
        except BlockingIOError:
            return found


def test_a_step_is_sent_in_one_datagram(plugin: Any, agent: socket.socket) -> None:
    """With the port by which the agent knows the server."""
    plugin.tells(1).record(stats(3, 2), None)
    assert received(agent) == [{"port": 8103, "rank": 1, "running": 3, "waiting": 2, "kv_usage": 0.25}]


def test_quick_steps_are_reported_now_and_then(plugin: Any, agent: socket.socket) -> None:
    """But at once where work begins, queues begin, or all is done."""
    tells = plugin.tells()
    for running, waiting in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (4, 2), (0, 0)):
        plugin.clock.now_s += 0.001
        tells.record(stats(running, waiting), None)
    assert [(word["running"], word["waiting"]) for word in received(agent)] == [(0, 0), (1, 0), (3, 1), (0, 0)]
    plugin.clock.now_s += 2 * plugin.module.MIN_INTERVAL_S
    tells.record(stats(0), None)
    assert len(received(agent)) == 1


def test_statistics_of_steps_are_summed(plugin: Any, agent: socket.socket) -> None:
    """Speculation, connectors and preemption, also of steps that are not sent; requests that wait for KV by stage."""
    tells = plugin.tells()
    busy = stats(1)
    busy.spec_decoding_stats = SimpleNamespace(num_drafts=2, num_draft_tokens=8, num_accepted_tokens=3)
    busy.kv_connector_stats = {"NixlConnector": {"transfer_duration": [0.5, 0.25], "num_failed_transfers": [1]}}
    busy.prefix_cache_stats = SimpleNamespace(queries=100, hits=60)
    busy.num_kv_fetch_reqs_by_stage = {"in_progress": 2}
    for _ in range(3):
        plugin.clock.now_s += 0.001
        tells.record(busy, SimpleNamespace(num_preempted_reqs=1))
    tells.record(None, SimpleNamespace(num_preempted_reqs=4))
    plugin.clock.now_s += 1.0
    tells.record(busy, None)
    first, last = received(agent)
    assert first["counters"]["drafts"] == 2
    assert last["fetching"] == {"in_progress": 2}
    assert last["counters"] == {
        "preemptions": 7,
        "prefix_queries": 400,
        "prefix_hits": 240,
        "drafts": 8,
        "draft_tokens": 32,
        "accepted_tokens": 12,
        "transfers": 8,
        "transfer_s": 3.0,
        "failed_transfers": 4,
    }


def test_numbers_of_other_libraries_do_not_end_the_reports(plugin: Any, agent: socket.socket) -> None:
    """Nor does what is no number."""
    tells = plugin.tells()
    busy = stats(1)
    busy.prefix_cache_stats = SimpleNamespace(queries=Fraction(100), hits=float("nan"))
    tells.record(busy, None)
    (sent,) = received(agent)
    assert sent["counters"] == {"prefix_queries": 100}


def test_settings_in_force_are_sent_now_and_then(plugin: Any, agent: socket.socket) -> None:
    """With the defaults that vLLM has filled in, and of what is listed only."""
    backend = SimpleNamespace(name="FLASH_ATTN")
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(enable_chunked_prefill=False, max_num_batched_tokens=2048, policy="fcfs"),
        cache_config=SimpleNamespace(cache_dtype="auto", gpu_memory_utilization=0.92),
        attention_config=SimpleNamespace(backend=backend),
        model_config=SimpleNamespace(model="/secret/path", dtype="torch.bfloat16"),
        speculative_config=None,
    )
    tells = plugin.module.AgentStatLogger(config, 0)
    tells.log_engine_initialized()
    (sent,) = received(agent)
    assert sent["settings"] == {
        "enable-chunked-prefill": "false",
        "max-num-batched-tokens": "2048",
        "scheduling-policy": "fcfs",
        "kv-cache-dtype": "auto",
        "gpu-memory-utilization": "0.92",
        "attention-backend": "FLASH_ATTN",
        "dtype": "bfloat16",
    }
    tells.record(stats(1), None)
    assert len(received(agent)) == 1
    plugin.clock.now_s += plugin.module.SETTINGS_INTERVAL_S
    tells.record(stats(1), None)
    assert [set(each) & {"settings", "running"} for each in received(agent)] == [{"running"}, {"settings"}]
    tells._socket.close()


def test_nothing_of_it_reaches_the_engine(plugin: Any, agent: socket.socket) -> None:
    """No agent, no figures, figures of another version: the step goes on."""
    tells = plugin.tells()
    tells.record(None, None)
    tells.record(SimpleNamespace(num_running_reqs="many", kv_cache_usage="all"), None)
    tells.record(SimpleNamespace(), None, mm_cache_stats=None, engine_idx=0)
    agent.close()
    for _ in range(10):
        plugin.clock.now_s += 1.0
        tells.record(stats(1), None)
    tells.log_engine_initialized()


def test_without_an_agent_it_does_nothing(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in every vLLM of the environment, and acts where it is told of an agent."""
    monkeypatch.delenv("HEARTH_AGENT_LOAD_LISTEN", raising=False)
    plugin.tells().record(stats(1), None)


@pytest.mark.parametrize(
    ("words", "port"), [(["serve", "--port", "1"], 1), (["--port=2"], 2), (["serve"], 8000), (["--port"], 8000)]
)
def test_the_port_is_that_of_the_command(plugin: Any, words: list[str], port: int) -> None:
    """As vLLM reads it."""
    assert plugin.module.served_port(words) == port


def test_the_distribution_brings_one_module_and_nothing_else() -> None:
    """The class is found by its entry point; no requirement enters the engine's environment; versions agree."""
    table = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
    declared = table["project"]["entry-points"]["vllm.stat_logger_plugins"]["hearth"]
    assert declared == f"{MODULE}:AgentStatLogger"
    assert "class AgentStatLogger(" in (FOLDER / f"{MODULE}.py").read_text(encoding="utf-8")
    assert table["project"]["dependencies"] == []
    assert table["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == [f"{MODULE}.py"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert table["project"]["version"] == ours
