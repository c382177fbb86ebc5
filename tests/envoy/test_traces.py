"""A split request behind a real Envoy is one trace: in front of our own proxy, and by the ext-proc filter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.transfer.wiring import KvRole, Wiring
from tests.envoy.envoys import DUPLEX, Way, config_of, envoy, running
from tests.envoy.scene import CHAT, FAST, asking
from tests.envoy.sidecar import sidecar
from tests.gateway.running import Running, serving
from tests.gateway.tracing.receiver import Receiver, attributes_of, receiving

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
TALK = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40


async def a_pair(stack: AsyncExitStack) -> list[SimulatedPod]:
    """A prefill pod and a decode pod."""
    return [
        await stack.enter_async_context(
            SimulatedPod(Options(models=("big",), profile=FAST, max_answer_tokens=40, wiring=Wiring(role=role)))
        )
        for role in (KvRole.PRODUCER, KvRole.CONSUMER)
    ]


async def a_gateway(
    stack: AsyncExitStack, folder: Path, receiver: Receiver, prefill: str, decode: str, **more: Any
) -> Running:
    """One that traces every request and accepts its caller's trace."""
    connector = {"kv_connector": "NixlConnector"}
    places = [
        {"url": prefill, "role": "prefill", "kv_role": "kv_producer", **connector},
        {"url": decode, "role": "decode", "kv_role": "kv_consumer", **connector},
    ]
    config = folder / "hearth.json"
    config.write_text(
        json.dumps(
            {
                "discovery": {"static": {"pods": places}},
                "routing": {"name": "warm", "scorers": {"decode_role": {"penalty_s": 1000}}},
                "tracing": {"endpoint": receiver.url, "sample_ratio": 0.0, "accept_parent": "all"},
                **more,
            }
        )
    )
    gateway = await stack.enter_async_context(serving("--config", str(config)))
    await gateway.until_each("pod_state_changed", "upstream", prefill, decode)
    return gateway


async def ask(url: str) -> str:
    """Send a streamed chat of the caller's trace and return its text."""
    body = asking(TALK, stream=True)
    async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=body, headers=PARENT) as answer:
        assert answer.status == 200
        return await answer.text()


def parent_of(pod: SimulatedPod) -> tuple[str, str, str]:
    """Trace and span that the last chat to a pod carried, and its state."""
    headers = {
        name.lower(): value for name, value in [one for one in pod.received if one.path == CHAT][-1].headers.items()
    }
    _, trace, span, _ = headers["traceparent"].split("-")
    return trace, span, headers.get("tracestate", "")


def in_order(spans: list[Span], *names: str) -> Mapping[str, Span]:
    """Spans by name, below one server span; each begins no earlier than the one before."""
    server, *others = sorted(spans, key=lambda span: (span.start_time_unix_nano, span.parent_span_id.hex() != SPAN))
    assert server.parent_span_id.hex() == SPAN
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    by_name = {span.name: span for span in others}
    assert sorted(by_name) == sorted(names)
    starts = [by_name[name].start_time_unix_nano for name in names]
    assert starts == sorted(starts)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano <= server.end_time_unix_nano for span in others)
    return by_name


async def test_a_split_request_behind_envoy_is_one_trace(tmp_path: Path) -> None:
    """Envoy in front of our own proxy: wait, choice, prefill, transfer and decode, and both pods below them."""
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        prefill, decode = await a_pair(stack)
        gateway = await a_gateway(stack, tmp_path, receiver, prefill.url, decode.url)
        config = config_of(Way(pods=(gateway.at("traffic").removeprefix("http://"),), logs=False), ["127.0.0.1:9"])
        without_filters(config)
        front = await stack.enter_async_context(running(config))
        assert "[DONE]" in await ask(front.url)
        await receiver.until(lambda received: len(received.spans) == 7)
        spans = in_order(receiver.spans, "admission", "choose engine", "chat big", "prefill", "transfer", "decode")
        assert parent_of(prefill) == (TRACE, spans["prefill"].span_id.hex(), "a=1")
        assert parent_of(decode) == (TRACE, spans["chat big"].span_id.hex(), "a=1")
        assert spans["prefill"].end_time_unix_nano <= spans["transfer"].start_time_unix_nano + 1000
        assert spans["transfer"].end_time_unix_nano <= spans["decode"].start_time_unix_nano + 1000


def without_filters(config: dict[str, Any]) -> None:
    """Leave only the router: the one upstream is the gateway, taken in turn."""
    (listener,) = config["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = manager["http_filters"][-1:]
    config["static_resources"]["clusters"][0].pop("load_balancing_policy")


async def test_a_split_request_by_the_filter_is_one_trace(tmp_path: Path) -> None:
    """A sidecar does the prefill: both pods have the attempt's span as their parent, and prefill reaches to the first
    token.
    """
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        prefill, decode = await a_pair(stack)
        side = await stack.enter_async_context(sidecar(decode.url))
        gateway = await a_gateway(stack, tmp_path, receiver, prefill.url, side.url, extproc={"listen": "127.0.0.1:0"})
        line = next(line for line in gateway.lines if line["event"] == "listening")
        front = await stack.enter_async_context(envoy(DUPLEX, str(line["extproc"][0])))
        assert "[DONE]" in await ask(front.url)
        await receiver.until(lambda received: len(received.spans) == 6)
        spans = in_order(receiver.spans, "admission", "choose engine", "chat big", "prefill", "decode")
        assert attributes_of(spans["prefill"])["hearth.prefill.includes_transfer"] is True
        assert parent_of(decode) == parent_of(prefill) == (TRACE, spans["chat big"].span_id.hex(), "a=1")
