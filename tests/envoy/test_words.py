"""What Envoy, and proxies before it, tell the picker beside a request: who ended it, whose it is, a sample's answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.envoy.envoys import BUFFERED_NONE, BUFFERED_OBSERVED, BUFFERED_STREAMED, DUPLEX, DUPLEX_NONE, Way
from tests.envoy.scene import Scene, a_scene, asking

WITHOUT_LOG = Way(logs=False)
SPEAKS = {"x-hearth-tenant": "one", "x-llm-d-inference-objective": "gold"}


async def break_pods(scene: Scene, **fault: Any) -> None:
    """Have every pod fail so from now on."""
    for pod in scene.pods:
        async with scene.session.post(f"{pod.url}/faults", json=fault) as reported:
            assert reported.status == 200


async def cut_stream(scene: Scene) -> tuple[bytes, dict[str, Any]]:
    """What a client gets of a stream whose pod dies in its middle, and the receipt of it."""
    got = b""
    async with scene.post(asking(stream=True, max_tokens=20_000, min_tokens=20_000, ignore_eos=True)) as answer:
        assert answer.status == 200
        got += await answer.content.readline()
        await break_pods(scene, kind="die")
        with suppress(aiohttp.ClientError):
            async for piece in answer.content.iter_any():
                got += piece
    return got, await scene.receipt(answer.headers["x-hearth-request-id"])


@pytest.mark.parametrize(
    ("way", "ended"),
    [
        pytest.param(BUFFERED_NONE, "connection_reset", id="told by the access log"),
        pytest.param(WITHOUT_LOG, "ok", id="told by nobody"),
        pytest.param(BUFFERED_OBSERVED, "connection_reset", id="observed"),
        pytest.param(BUFFERED_STREAMED, "connection_reset", id="watched"),
        pytest.param(DUPLEX_NONE, "connection_reset", id="duplex request"),
        pytest.param(DUPLEX, "connection_reset", id="duplex"),
    ],
)
async def test_a_stream_that_its_pod_has_cut_is_blamed_on_it_and_not_gone_on_with(way: Way, ended: str) -> None:
    """Envoy carries the stream, so no other pod can go on with it; whose fault it was is known where Envoy says so."""
    async with a_scene(way) as scene:
        got, receipt = await cut_stream(scene)
        assert got.startswith(b"data: ")
        assert b"[DONE]" not in got
        assert [attempt["result"] for attempt in receipt["attempts"]] == [ended]
        assert not receipt.get("resumes")
        await scene.until_idle()


@pytest.mark.parametrize("overrides", [True, False])
async def test_a_sample_of_unobserved_answers_is_settled_exactly(*, overrides: bool) -> None:
    """Where Envoy lets the picker ask for it; where it does not, nothing is seen, and the answer is whole as well."""
    async with a_scene(Way(overrides=overrides), extproc={"sample_share": 1.0}) as scene:
        for stream in (False, True):
            body = asking(stream=stream) | ({"stream_options": {"include_usage": True}} if stream else {})
            async with scene.post(body) as answer:
                assert answer.status == 200
                assert '"completion_tokens":8' in (await answer.text()).replace(" ", "")
            receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
            assert (receipt["usage"] is not None) == overrides
            assert receipt["usage"] is None or receipt["usage"]["output_tokens"] == 8


async def test_headers_that_speak_for_others_are_believed_where_envoy_strips_them() -> None:
    """`trust_headers`: tenant and tier are as they say, without a key; the model that was decided on answers."""
    tenants: dict[str, dict[str, Any]] = {"one": {"tier": "bronze"}}
    async with a_scene(BUFFERED_NONE, extproc={"trust_headers": True}, tenants=tenants) as scene:
        for name in ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"):
            async with scene.post(asking(), headers=SPEAKS | {name: "small"}) as answer:
                assert (answer.status, (await answer.json())["model"]) == (200, "small")
            receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
            assert (receipt["tenant"], receipt["tier"], receipt["model"]) == ("one", "gold", "small")
        async with scene.post(asking(), headers=SPEAKS | {"x-llm-d-model-name-rewrite": "none"}) as answer:
            assert answer.status == 404


async def test_headers_that_speak_for_others_are_nothing_from_a_client() -> None:
    """Without that, and from nobody whom we trust: a key is wanted, and the model is the one that was asked for."""
    async with a_scene(BUFFERED_NONE, tenants={"one": {"tier": "bronze"}}) as scene:
        async with scene.post(asking(), headers=SPEAKS) as answer:
            assert answer.status == 401
        head = SPEAKS | {"authorization": "Bearer sk-one", "x-llm-d-model-name-rewrite": "small"}
        async with scene.post(asking(), headers=head) as answer:
            assert (answer.status, (await answer.json())["model"]) == (200, "big")
        receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
        assert (receipt["tier"], receipt["model"]) == ("bronze", "big")


async def test_no_answer_is_lost_to_an_early_end() -> None:
    """Full duplex: a stream that ends before its exchange loses bytes, now and then; of many answers none is short."""
    async with a_scene(DUPLEX) as scene:
        for turn in range(150):
            async with scene.post(asking(f"{turn}", max_tokens=2)) as answer:
                reported = await answer.json()
                assert (answer.status, reported["usage"]["completion_tokens"]) == (200, 2)
        assert scene.envoy is not None
        failed = await scene.envoy.stats("ext_proc.streams_failed")
        assert set(failed.values()) == {0}
