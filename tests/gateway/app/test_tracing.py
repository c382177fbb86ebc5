"""Traces of a running gateway, as a receiver and as pods see them."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.transfer.wiring import KvRole, Wiring
from tests.gateway.running import Running, serving
from tests.gateway.tracing.receiver import Receiver, attributes_of, receiving

CHAT = "/v1/chat/completions"
FAST = Profile(step_base_s=0.002)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
CANARY = "canary-7f3a"


@asynccontextmanager
async def a_gateway(
    folder: Path, receiver: Receiver, pods: list[dict[str, Any]], *, workers: int = 1, **tracing: Any
) -> AsyncIterator[Running]:
    """One that exports all traces to the receiver."""
    config = folder / "hearth.json"
    config.write_text(
        json.dumps(
            {
                "discovery": {"static": {"pods": pods}},
                "routing": {"name": "warm", "scorers": {"decode_role": {"penalty_s": 1000}}},
                "tracing": {"endpoint": receiver.url, "sample_ratio": 1.0, **tracing},
                "processes": workers,
            }
        )
    )
    async with serving("--config", str(config)) as gateway:
        # On a busy machine a pod may be unready first: a pair needs both.
        await gateway.until_each("pod_state_changed", "upstream", *(pod["url"] for pod in pods), state="ready")
        yield gateway


async def ask(gateway: Running, headers: dict[str, str] | None = None, **more: Any) -> str:
    """Send a chat and return its id."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"{CANARY} Hi"}], "max_tokens": 5} | more
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.at("traffic", CHAT), json=body, headers=headers or {}) as answer,
    ):
        await answer.read()
        return answer.headers["x-hearth-request-id"]


def headers_of(pod: SimulatedPod) -> list[dict[str, str]]:
    """Headers of each generating request to a pod, in lower case; probes come between them."""
    return [{name.lower(): value for name, value in one.headers.items()} for one in pod.received if one.path == CHAT]


def parents_of(pod: SimulatedPod) -> list[tuple[str, str, str]]:
    """Trace, span and flags that each generating request to a pod carried."""
    sent = headers_of(pod)
    return [(parts[1], parts[2], parts[3]) for parts in (headers["traceparent"].split("-") for headers in sent)]


async def test_a_request_is_one_trace_on_receipt_log_and_pod(tmp_path: Path) -> None:
    """The pod's parent is the span of the attempt; a client that is not trusted is in a trace of ours."""
    async with (
        receiving() as receiver,
        SimulatedPod(Options(models=("tiny",), profile=FAST)) as pod,
        a_gateway(tmp_path, receiver, [{"url": pod.url}]) as gateway,
    ):
        request_id = await ask(gateway, PARENT, stream=True)
        line = await gateway.until("request_completed", request_id=request_id)
        await receiver.until(lambda received: len(received.of_trace(line["trace_id"])) == 6)
        async with aiohttp.ClientSession() as session:
            async with session.get(gateway.at("admin", f"/receipts/{request_id}")) as answer:
                receipt = await answer.json()
            async with session.get(gateway.at("metrics", "/metrics")) as answer:
                metrics = await answer.text()
    spans = receiver.of_trace(line["trace_id"])
    assert line["trace_id"] == receipt["trace_id"] != TRACE
    assert (spans[0].span_id.hex(), line["parent_span_id"], spans[0].parent_span_id) == (
        line["request_span_id"],
        None,
        b"",
    )
    assert attributes_of(spans[0])["hearth.request_id"] == request_id
    assert [span.name for span in spans if span.name != "chat tiny"] == [
        "admission",
        "choose engine",
        "prefill",
        "decode",
    ]
    attempt = next(span for span in spans if "hearth.attempt.number" in attributes_of(span))
    assert parents_of(pod) == [(line["trace_id"], attempt.span_id.hex(), "01")]
    assert "tracestate" not in headers_of(pod)[-1]
    assert "hearth_traces_exported_total" in metrics
    assert 'hearth_traces_dropped_total{reason="queue_full"} 0.0' in metrics


async def test_the_callers_trace_is_continued_where_it_is_accepted(tmp_path: Path) -> None:
    """With its state; one that is not sampled is passed on as such and exported nowhere."""
    async with (
        receiving() as receiver,
        SimulatedPod(Options(models=("tiny",), profile=FAST)) as pod,
        a_gateway(tmp_path, receiver, [{"url": pod.url}], accept_parent="all") as gateway,
    ):
        await ask(gateway, {"traceparent": f"00-{TRACE[::-1]}-{SPAN}-00"})
        await ask(gateway, PARENT)
        await receiver.until(lambda received: len(received.spans) >= 4)
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    root = receiver.of_trace(TRACE)[0]
    assert (root.parent_span_id.hex(), root.trace_state) == (SPAN, "a=1")
    assert [(trace, flags) for trace, _, flags in parents_of(pod)] == [(TRACE[::-1], "00"), (TRACE, "01")]
    assert headers_of(pod)[-1]["tracestate"] == "a=1"


async def test_no_text_of_a_prompt_or_an_answer_is_exported(tmp_path: Path) -> None:
    """Nor of an error, a tool, a session or a user: canaries in each of them."""
    async with (
        receiving() as receiver,
        SimulatedPod(Options(models=("tiny",), profile=FAST)) as pod,
        a_gateway(tmp_path, receiver, [{"url": pod.url}]) as gateway,
    ):
        tool = {"type": "function", "function": {"name": CANARY, "parameters": {"type": "object"}}}
        await ask(gateway, {"x-session-id": CANARY, "x-request-id": CANARY}, user=CANARY, stop=[CANARY], tools=[tool])
        await ask(gateway, stream=True, messages=[{"role": "system", "content": CANARY}])
        await ask(gateway, model=CANARY)
        await ask(gateway, max_tokens=CANARY)
        await ask(gateway, response_format={"type": CANARY})
        await ask(gateway, {"authorization": f"Bearer {CANARY}", "x-hearth-tenant": CANARY})
        answered = [bytes(one.body) for one in pod.received if one.path == CHAT]
        await receiver.until(lambda received: sum(not span.parent_span_id for span in received.spans) == 6)
    assert any(CANARY.encode() in body for body in answered)
    exported = b"".join(receiver.bodies)
    assert CANARY.encode() not in exported


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_gateway_that_stops_exports_what_is_queued(tmp_path: Path, workers: int) -> None:
    """Within its bound, also each worker of several."""
    async with (
        receiving() as receiver,
        SimulatedPod(Options(models=("tiny",), profile=FAST)) as pod,
        a_gateway(tmp_path, receiver, [{"url": pod.url}], workers=workers) as gateway,
    ):
        for _ in range(4):
            await ask(gateway)
        gateway.running.send_signal(signal.SIGTERM)
        assert await gateway.end() == 0
        assert len({span.trace_id for span in receiver.spans}) == 4


async def test_a_receiver_that_hangs_keeps_no_gateway_from_stopping(tmp_path: Path) -> None:
    """Requests are answered meanwhile, and what was lost is logged."""
    async with receiving() as receiver, SimulatedPod(Options(models=("tiny",), profile=FAST)) as pod:
        receiver.hangs = True
        async with a_gateway(tmp_path, receiver, [{"url": pod.url}], flush_s=0.1) as gateway:
            await ask(gateway)
            await receiver.until(lambda received: len(received.bodies) == 1)
            await ask(gateway)
            gateway.running.send_signal(signal.SIGTERM)
            assert await gateway.end() == 0
            assert any(line["event"] == "trace_export_failed" and "dropped" in line for line in gateway.lines)


async def test_both_pods_of_a_pair_are_in_the_trace(tmp_path: Path) -> None:
    """The prefill pod below the prefill, the decode pod below the attempt; the spans follow one another."""
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        prefill, decode = [
            await stack.enter_async_context(
                SimulatedPod(Options(models=("tiny",), profile=FAST, wiring=Wiring(role=role)))
            )
            for role in (KvRole.PRODUCER, KvRole.CONSUMER)
        ]
        places = [
            {"url": prefill.url, "role": "prefill", "kv_connector": "NixlConnector", "kv_role": "kv_producer"},
            {"url": decode.url, "role": "decode", "kv_connector": "NixlConnector", "kv_role": "kv_consumer"},
        ]
        gateway = await stack.enter_async_context(a_gateway(tmp_path, receiver, places))
        request_id = await ask(gateway, stream=True, messages=[{"role": "user", "content": "word " * 400}])
        line = await gateway.until("request_completed", request_id=request_id)
        await receiver.until(lambda received: len(received.of_trace(line["trace_id"])) == 7)
        spans = {span.name: span for span in receiver.of_trace(line["trace_id"])[1:]}
        assert list(spans) == ["admission", "choose engine", "chat tiny", "prefill", "transfer", "decode"]
        assert parents_of(prefill) == [(line["trace_id"], spans["prefill"].span_id.hex(), "01")]
        assert parents_of(decode) == [(line["trace_id"], spans["chat tiny"].span_id.hex(), "01")]
        for before, after in (("prefill", "transfer"), ("transfer", "decode")):
            assert abs(spans[before].end_time_unix_nano - spans[after].start_time_unix_nano) < 1000
            assert spans[before].parent_span_id == spans["chat tiny"].span_id
