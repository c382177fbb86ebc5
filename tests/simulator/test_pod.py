"""The pod as a server: what happens around the APIs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from simulator.computed import FOLDER
from simulator.engine_profile import load_engine_profile
from simulator.faults import NO_FAULT, Fault, FaultKind
from simulator.options import Options
from simulator.pod import SimulatedPod, parse_options
from tests.gateway.kv_index.redis_servers import free_port
from tests.simulator.asking import LONG, MODEL, PATIENCE_S, PROFILE, Client, chat, running

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

ENDLESS = {"max_tokens": 10_000, "ignore_eos": True}
"""Longer than any test; some five seconds."""


def bodies() -> dict[str, dict[str, Any]]:
    """An endless request of each API."""
    messages = [{"role": "user", "content": LONG}]
    return {
        CHAT: {"messages": messages, **ENDLESS},
        COMPLETIONS: {"prompt": LONG, **ENDLESS},
        RESPONSES: {"input": LONG, "text": {"format": {"type": "json_schema", "schema": ENDLESS_SCHEMA}}},
        MESSAGES: {"messages": messages, "max_tokens": 10_000, "tools": [ENDLESS_TOOL], "tool_choice": {"type": "any"}},
    }


ENDLESS_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 4000}
ENDLESS_TOOL = {"name": "t", "input_schema": ENDLESS_SCHEMA}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_a_client_that_goes_stops_its_answer(path: str, stream: bool) -> None:
    """By the next step: nothing runs, nothing is held, and tokens stop coming."""
    async with running() as (pod, client):
        body = {"model": MODEL, **bodies()[path], "stream": stream}
        request = asyncio.create_task(client.post(path, body))
        async with asyncio.timeout(PATIENCE_S):
            while not pod.engines[0].statistics().generation_tokens:
                await client.get("/health")
            assert pod.service.in_flight == 1
            request.cancel()
            await pod.service.idle()
        books = pod.engines[0].statistics()
        assert (books.running, books.waiting, books.kv_usage) == (0, 0, 0.0)
        assert books.generation_tokens < 4000
        assert await client.metric("request_success_total", finished_reason="abort") == 0


async def test_ranks_have_caches_of_their_own() -> None:
    """The header chooses one; without it the one with the least to do is taken."""
    async with running(engines=2) as (pod, client):
        for rank, cached in (("1", 0), ("0", 0), ("1", 1)):
            usage = (await client.ask(CHAT, chat(LONG), {"X-data-parallel-rank": rank}))["usage"]
            assert bool(usage["prompt_tokens_details"]["cached_tokens"]) == bool(cached)
        assert await client.metric("prompt_tokens_total", engine="1") == 2 * usage["prompt_tokens"]
        assert (await client.post(CHAT, chat(), {"X-data-parallel-rank": "2"})).status == 400
        pod.set_fault(Fault(FaultKind.HANG))
        requests = [asyncio.create_task(client.ask(CHAT, chat())) for _ in range(4)]
        async with asyncio.timeout(PATIENCE_S):
            while pod.service.in_flight < 4:
                await client.get("/health")
        assert [rank.in_flight for rank in pod.service.ranks] == [2, 2]
        pod.set_fault(NO_FAULT)
        await asyncio.gather(*requests)


async def test_metrics_count_what_was_done() -> None:
    """VLLM's names, and numbers that fit together."""
    async with running(max_num_queued_reqs=50) as (_, client):
        usage = [(await client.ask(CHAT, chat(LONG)))["usage"] for _ in range(2)]
        prompt, cached = usage[0]["prompt_tokens"], usage[1]["prompt_tokens_details"]["cached_tokens"]
        for name, value in (
            ("prompt_tokens_total", 2 * prompt),
            ("prefix_cache_queries_total", 2 * prompt),
            ("prefix_cache_hits_total", cached),
            ("generation_tokens_total", 16),
            ("num_requests_running", 0),
            ("time_to_first_token_seconds_count", 2),
            ("inter_token_latency_seconds_count", 14),
            ("e2e_request_latency_seconds_count", 2),
        ):
            assert await client.metric(name, engine="0", model_name=MODEL) == value, name
        assert await client.metric("prompt_tokens_by_source_total", source="local_cache_hit") == cached
        assert await client.metric("prompt_tokens_by_source_total", source="local_compute") == 2 * prompt - cached
        assert await client.metric("request_success_total", finished_reason="length") == 2
        sizes = {"block_size": "16", "num_gpu_blocks": "1000", "kv_cache_size_tokens": "16000"}
        assert await client.metric("cache_config_info", **sizes) == 1


async def test_adapters_in_use_are_reported() -> None:
    """While a request runs, and only then."""
    async with running(adapters={"poet": "/p"}) as (pod, client):
        pod.set_fault(Fault(FaultKind.HANG))
        request = asyncio.create_task(client.ask(CHAT, chat(model="poet")))
        async with asyncio.timeout(PATIENCE_S):
            while not pod.service.in_flight:
                await client.get("/health")
        assert await client.metric("lora_requests_info", running_lora_adapters="poet") > 0
        pod.set_fault(NO_FAULT)
        await request
        assert await client.metric("lora_requests_info", running_lora_adapters="") > 0


async def test_load_is_reported_in_a_header_on_request() -> None:
    """ORCA, as the endpoint picker protocol has it."""
    async with running() as (_, client):
        answer = await client.get("/version", {"endpoint-load-metrics-format": "JSON"})
        assert answer.headers["endpoint-load-metrics"].startswith('JSON {"named_metrics": {"num_requests_waiting": 0.0')
        assert "endpoint-load-metrics" not in (await client.get("/version")).headers


async def test_a_key_guards_the_apis_only() -> None:
    """Bearer alone; health, metrics and tokens stay open."""
    async with running(api_key="secret") as (_, client):
        for headers in (None, {"Authorization": "Bearer wrong"}, {"x-api-key": "secret"}):
            answer = await client.post(CHAT, chat(), headers)
            assert (answer.status, answer.json()) == (401, {"error": "Unauthorized"})
        await client.ask(CHAT, chat(), {"Authorization": "Bearer secret"})
        assert (await client.get("/v1/models")).status == 401
        for path in ("/health", "/metrics"):
            assert (await client.get(path)).status == 200
        await client.ask("/tokenize", {"prompt": "a"})


async def test_request_ids_are_echoed_on_request() -> None:
    """`--enable-request-id-headers`; the body's own id wins over the header's."""
    async with running(reports_request_id=True) as (_, client):
        answer = await client.post(CHAT, chat(request_id="mine"), {"X-Request-Id": "yours"})
        assert (answer.headers["x-request-id"], answer.json()["id"]) == ("yours", "chatcmpl-mine")


async def test_a_pod_loads_before_it_is_well() -> None:
    """Until then it answers nothing but that it is not ready."""
    async with running(load_s=3600.0) as (_, client):
        assert (await client.get("/health")).status == 503
        assert (await client.post(CHAT, chat())).status == 503
    async with running(load_s=1e-9) as (_, client), asyncio.timeout(PATIENCE_S):
        while (await client.get("/health")).status != 200:
            pass


async def test_a_prefix_cache_can_be_reset() -> None:
    """Then what was warm is cold."""
    async with running() as (_, client):
        await client.ask(CHAT, chat(LONG))
        assert await client.ask("/reset_prefix_cache", {}) == {"success": True}
        assert (await client.ask(CHAT, chat(LONG)))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_what_reached_the_pod_is_remembered() -> None:
    """For tests that ask what a gateway let through."""
    async with running() as (pod, client):
        await client.ask(CHAT, chat(), {"X-Request-Id": "ours"})
        [received] = pod.received
        assert (received.method, received.path, received.headers["x-request-id"]) == ("POST", CHAT, "ours")
        assert b'"Hello"' in received.body


async def test_a_stream_that_fell_behind_may_catch_up() -> None:
    """One event a token, unless the pod is told to be as vLLM is."""
    for most, events in ((1, 42), (1000, 3)):
        async with running(tokens_per_event=most) as (pod, client):
            pod.set_fault(Fault(FaultKind.HANG))
            requested = asyncio.create_task(client.stream(CHAT, chat(max_tokens=40, ignore_eos=True)))
            async with asyncio.timeout(PATIENCE_S):
                while not pod.service.in_flight:
                    await client.get("/health")
            pod.set_fault(Fault(FaultKind.SLOW, factor=1e-6))
            assert len((await requested).events) == events


async def test_small_things_are_there() -> None:
    """Paths that a gateway may ask for."""
    async with running() as (_, client):
        assert (await client.get("/load")).json() == {"server_load": 0}
        assert (await client.get("/kv_event_sources")).json() == {}
        assert (await client.post("/ping", {})).status == 200
        async with client.session.head(f"{client.url}/health") as answer:
            assert answer.status == 405


async def test_a_pod_starts_again_on_its_port_and_cold() -> None:
    """After it was stopped, or died."""
    pod = SimulatedPod(Options(profile=PROFILE, models=(MODEL,)), port=free_port())
    async with pod, aiohttp.ClientSession() as session:
        client = Client(pod.url, session)
        await client.ask(CHAT, chat(LONG))
        pod.set_fault(Fault(FaultKind.DIE))
        with pytest.raises(aiohttp.ClientError):
            await client.get("/health")
        await pod.start()
        assert pod.url == client.url
        assert (await client.ask(CHAT, chat(LONG)))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_pod_that_was_never_started_says_so() -> None:
    """Rather than failing somewhere inside."""
    pod = SimulatedPod()
    assert "down" in repr(pod)
    assert pod.received == ()
    with pytest.raises(RuntimeError, match="never started"):
        pod.set_fault(NO_FAULT)


def test_the_command_line_is_vllms_where_it_can_be() -> None:
    """Every flag reaches its option."""
    options, host, port = parse_options(
        [
            *("--listen", "127.0.0.1:8101", "--model", "a", "--model", "b", "--lora", "poet=/p", "--engines", "2"),
            *("--task", "pooling", "--max-model-len", "4096", "--api-key", "k", "--no-prompt-tokens-details"),
            *("--scheduling-policy", "priority", "--block-size", "32", "--time-scale", "5", "--load-s", "1"),
        ]
    )
    assert (host, port) == ("127.0.0.1", 8101)
    assert (options.models, dict(options.adapters), options.engines) == (("a", "b"), {"poet": "/p"}, 2)
    assert (options.tasks, options.max_model_len, options.api_key) == (frozenset({"pooling"}), 4096, "k")
    assert not options.reports_cached_tokens
    assert options.profile.by_priority
    assert (options.profile.block_size, options.profile.time_scale, options.load_s) == (32, 5.0, 1.0)
    assert replace(parse_options([])[0]) == Options()


def test_an_engine_profile_is_read_and_changed_by_flags() -> None:
    """Speeds from the file, what the command line gives in their place, and as fast as it says."""
    path = FOLDER / "h100-qwen3.5-35b-a3b.yaml"
    options, _, _ = parse_options(["--profile", str(path), "--max-num-seqs", "7", "--time-scale", "3"])
    engine = load_engine_profile(path).engine
    assert options.profile == replace(engine, max_num_seqs=7, time_scale=3.0)


def test_a_wrong_command_line_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """With usage and the reason."""
    for arguments in (["--engines", "0"], ["--listen", "here"]):
        with pytest.raises(SystemExit):
            parse_options(arguments)
        assert "usage" in capsys.readouterr().err


async def command(*arguments: str) -> tuple[asyncio.subprocess.Process, str]:
    """A pod as a command, and where it listens."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simulator.pod", "--model", MODEL, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    return process, line.decode().strip()


async def test_the_command_serves_until_it_is_stopped() -> None:
    """Its first line is its URL; SIGTERM ends it well, an order to die does not."""
    stopped, url = await command("--time-scale", "50")
    dead, other = await command()
    async with aiohttp.ClientSession() as session:
        assert (await Client(url, session).ask(CHAT, chat()))["model"] == MODEL
        await Client(other, session).ask("/faults", {"kind": "die"})
    stopped.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(stopped.wait(), PATIENCE_S) == 0
    assert await asyncio.wait_for(dead.wait(), PATIENCE_S) == 1
