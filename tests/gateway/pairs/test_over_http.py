"""Pairs over real sockets with simulated pods: the same answer as one pod gives, by each connector and in each API."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.pairs.scene import ASKED, CHAT, a_scene
from tests.simulator.asking import LONG, MODEL, running

COMPLETIONS = {"model": MODEL, "prompt": LONG, "max_tokens": 24, "ignore_eos": True}
RESPONSES = {"model": MODEL, "input": LONG, "max_output_tokens": 24}
MESSAGES = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 24}

ASKINGS = {
    CHAT: ASKED,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


async def alone(path: str = CHAT, body: dict[str, Any] = ASKED) -> Any:
    """What a pod answers that shares nothing."""
    async with running() as (_, client):
        return await client.ask(path, body)


@pytest.mark.parametrize("path", ASKINGS)
async def test_a_pair_answers_like_one_pod(path: str) -> None:
    """In all four APIs; the decode pod fetches the KV, and the receipt tells both."""
    body = ASKINGS[path]
    async with a_scene() as scene:
        answer = await scene.ask(body, path)
        await scene.is_quiet()
        (attempt,) = scene.attempts
        assert attempt.prefill_engine == scene.pods[0][0].url
        assert attempt.engine == scene.pods[1][0].url
        assert attempt.fallback_reason is None
        assert await scene.fetched_tokens(1) > 100
    assert _texts(answer) == _texts(await alone(path, body))


@pytest.mark.parametrize("connector", ["MooncakeConnector", "ExampleConnector"])
async def test_every_connector_that_can_be_simulated(connector: str, tmp_path: Path) -> None:
    """By its own words: at once with a transfer id, or by way of a folder."""
    wiring: dict[str, Any] = {"folder": tmp_path} if connector == "ExampleConnector" else {}
    async with a_scene(connector, **wiring) as scene:
        answer = await scene.ask()
        await scene.is_quiet()
        (attempt,) = scene.attempts
        assert attempt.connector == connector
        assert attempt.fallback_reason is None
        assert await scene.fetched_tokens(1) > 100
    assert _texts(answer) == _texts(await alone())


async def test_a_stream_reports_how_long_the_hand_over_took() -> None:
    """Its first token is seen, so that transfers are learned from."""
    async with a_scene() as scene:
        answer = await scene.client.stream(CHAT, ASKED)
        assert answer.events[-1] == (None, None)
        await scene.is_quiet()
        (attempt,) = scene.attempts
        assert attempt.actual_transfer_s is not None
        assert attempt.prefill_s is not None
        assert attempt.predicted_transfer_s is not None


async def test_a_client_cannot_name_a_transfer() -> None:
    """Whatever it sends as `kv_transfer_params` reaches no pod: a made-up one would kill an engine."""
    async with a_scene() as scene:
        poison = {"do_remote_prefill": True, "remote_engine_id": "x"}
        await scene.ask({**ASKED, "kv_transfer_params": poison})
        await scene.is_quiet()
        (attempt,) = scene.attempts
        assert attempt.result == "ok"


def _texts(answer: Any) -> str:
    """All text of an answer, in whatever API."""
    match answer:
        case {"text": str(text)} | {"content": str(text)}:
            return text
        case dict():
            inside = ("choices", "message", "output", "content")
            return "".join(_texts(answer[name]) for name in inside if name in answer)
        case list():
            return "".join(map(_texts, answer))
        case _:
            return ""
