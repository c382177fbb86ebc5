"""Prefill and decode on two pods, through both shells: ours hands over itself, behind Envoy a sidecar is told to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.transfer.wiring import KvRole, Wiring
from tests.envoy.envoys import BUFFERED_NONE, DUPLEX, Way, envoy
from tests.envoy.scene import CHAT, FAST, Scene, asking
from tests.envoy.sidecar import Sidecar, sidecar
from tests.gateway.running import serving

TALK = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40
OTHER = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea. " * 40

TRANSCRIPT: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, asking(TALK)),
    (CHAT, asking(TALK + OTHER, stream=True, stream_options={"include_usage": True})),
    ("/v1/completions", {"model": "big", "prompt": OTHER, "max_tokens": 4}),
    (CHAT, asking(OTHER, max_tokens=3)),
    (CHAT, asking(model="none")),
)


@dataclass(frozen=True)
class Pair:
    """A prefill pod, a decode pod with its sidecar, and the scene that stands on them."""

    scene: Scene
    side: Sidecar

    @property
    def named(self) -> dict[str, str]:
        """Pods by what they are there for."""
        prefill, decode = self.scene.pods
        return {prefill.url: "prefill", decode.url: "decode", self.side.url: "decode"}


@asynccontextmanager
async def a_pair(folder: Path, way: Way | None) -> AsyncIterator[Pair]:
    """One pod for each half of a request; every request is split, where it can be."""
    async with AsyncExitStack() as stack:
        pods = [
            await stack.enter_async_context(
                SimulatedPod(Options(models=("big",), profile=FAST, max_answer_tokens=40, wiring=Wiring(role=role)))
            )
            for role in (KvRole.PRODUCER, KvRole.CONSUMER)
        ]
        side = await stack.enter_async_context(sidecar(pods[1].url))
        decode = pods[1].url if way is None else side.url
        places = [
            {"url": pods[0].url, "role": "prefill", "kv_connector": "NixlConnector", "kv_role": "kv_producer"},
            {"url": decode, "role": "decode", "kv_connector": "NixlConnector", "kv_role": "kv_consumer"},
        ]
        reported: dict[str, Any] = {
            "discovery": {"static": {"pods": places}},
            "routing": {"name": "warm", "scorers": {"decode_role": {"penalty_s": 1000}}},
            "extproc": {"listen": "127.0.0.1:0"},
        }
        config = folder / f"{'own' if way is None else 'behind'}.json"
        config.write_text(json.dumps(reported))
        gateway = await stack.enter_async_context(serving("--config", str(config)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        scene = Scene(pods, gateway, session)
        if way is not None:
            scene.envoy = await stack.enter_async_context(envoy(way, scene.picker))
        yield Pair(scene, side)


async def requested(pair: Pair) -> list[object]:
    """What clients are told, as far as it is the same each time."""
    found: list[object] = []
    for path, body in TRANSCRIPT:
        async with pair.scene.post(body, path) as answer:
            text = await answer.text()
        found.append((answer.status, text.count("data: "), '"completion_tokens"' in text))
        if (receipt_id := answer.headers.get("x-hearth-request-id")) is not None:
            await pair.scene.receipt(receipt_id)
    return found


async def decided(pair: Pair) -> list[object]:
    """Who was to do which half of each request, how KV was to pass, and how it ended."""
    named = pair.named
    found: list[object] = []
    for receipt in reversed(await pair.scene.receipts()):
        halves = [
            (
                named[one["engine"]],
                named.get(one["prefill_engine"], one["prefill_engine"]),
                one["connector"],
                one["fallback_reason"],
            )
            for one in receipt["attempts"]
        ]
        found.append((receipt["status"], receipt["reason"], receipt["model"], receipt["stream"], halves))
    return found


@pytest.mark.parametrize("way", [BUFFERED_NONE, DUPLEX], ids=["buffered", "duplex"])
async def test_the_same_requests_are_split_alike_through_both_shells(tmp_path: Path, way: Way) -> None:
    """The decode pod's sidecar is told the prefill pod, as `ip:port`; KV passes; ledgers are empty afterwards."""
    async with a_pair(tmp_path, None) as own, a_pair(tmp_path, way) as behind:
        assert await requested(behind) == await requested(own)
        assert await decided(behind) == await decided(own)
        prefill = behind.scene.endpoint(0)
        assert sum("prefill" in str(each) for each in await decided(behind)) >= 4
        assert behind.side.prefillers == [prefill] * len(behind.side.prefillers)
        assert len(behind.side.prefillers) >= 4
        assert own.side.prefillers == []
        for pair in (own, behind):
            await pair.scene.until_idle()
