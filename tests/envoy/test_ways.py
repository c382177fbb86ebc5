"""Every way of working with Envoy: requests are answered, placed, accounted for, and large bodies arrive whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio

from simulator.options import Options
from tests.envoy.envoys import BUFFERED_NONE, BUFFERED_OBSERVED, BUFFERED_STREAMED, DUPLEX, DUPLEX_NONE, STREAMED_NONE
from tests.envoy.scene import CHAT, FAST, Scene, a_scene, asking, until
from tests.scenarios.place import LONG

WAYS = {
    "buffered": BUFFERED_NONE,
    "observed": BUFFERED_OBSERVED,
    "watched": BUFFERED_STREAMED,
    "streamed": STREAMED_NONE,
    "duplex request": DUPLEX_NONE,
    "duplex": DUPLEX,
}
LENGTHY = Options(models=("big",), profile=FAST, min_answer_tokens=600, max_answer_tokens=600)
SEES_ANSWERS = {"observed", "watched", "duplex"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS)
async def way(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Scene]]:
    async with a_scene(
        WAYS[request.param], tenants={"one": {}, "capped": {"output_tpm": 300}}, options=LENGTHY
    ) as scene:
        yield request.param, scene


KEY = {"authorization": "Bearer sk-one"}


async def stream(scene: Scene, body: dict[str, Any], key: str = "one") -> tuple[dict[str, str], list[Any]]:
    """The head of a streamed answer, and its events."""
    async with scene.post(body | {"stream": True}, headers={"authorization": f"Bearer sk-{key}"}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return dict(answer.headers), [json.loads(event) for event in events]


async def test_unary_answers_arrive_and_are_settled(way: tuple[str, Scene]) -> None:
    """Usage stands on the receipt exactly where the answer is seen; the ledger is empty afterwards."""
    name, scene = way
    async with scene.post(asking(LONG), headers=KEY) as answer:
        assert answer.status == 200
        reported = await answer.json()
    receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
    assert (receipt["status"], receipt["tenant"], receipt["frontend"]) == (200, "one", "extproc")
    usage = receipt["usage"]
    if name in SEES_ANSWERS:
        assert usage["output_tokens"] == reported["usage"]["completion_tokens"] == 8
    else:
        assert usage is None
    await scene.until_idle()


async def test_streams_arrive_as_the_pod_sent_them(way: tuple[str, Scene]) -> None:
    """No event is lost, none is added, and the first token is timed."""
    _, scene = way
    head, events = await stream(scene, asking())
    assert sum(bool(choice["delta"].get("content")) for event in events for choice in event["choices"]) == 8
    assert all(event["choices"] for event in events), "a usage event nobody asked for"
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert receipt["ttft_s"] is not None
    assert receipt["stream"]


async def test_usage_that_was_requested_is_passed_on(way: tuple[str, Scene]) -> None:
    """And settled where it is seen."""
    name, scene = way
    head, events = await stream(scene, asking(stream_options={"include_usage": True}))
    assert events[-1]["usage"]["completion_tokens"] == 8
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert (receipt["usage"] is not None) == (name in SEES_ANSWERS)


async def test_limits_on_output_cut_only_where_the_answer_goes_through_us(way: tuple[str, Scene]) -> None:
    """Full duplex ends the stream where the limit is; all other ways charge it and let it pass."""
    name, scene = way
    body = asking()
    del body["max_tokens"]
    head, events = await stream(scene, body, key="capped")
    count = sum(bool(choice["delta"].get("content")) for event in events for choice in event["choices"])
    assert (count < 600) == (name == "duplex")
    await scene.receipt(head["x-hearth-request-id"])
    async with scene.session.get(scene.gateway.at("admin", "/limits")) as answer:
        accounts = {one["account"]: one for one in (await answer.json())["accounts"]}
    assert accounts["capped"]["requests_in_flight"] == 0
    assert accounts["capped"]["limits"]["output_tokens"]["used"] >= 200


async def test_twelve_megabytes_arrive_complete(way: tuple[str, Scene]) -> None:
    """The pod counts as many tokens as where nobody stands between, from one byte short of a piece to 12 MB."""
    _, scene = way
    for size in (61_999, 62_001, 12 << 20):
        assert await counted(scene, scene.url, size) == await counted(scene, scene.pods[0].url, size)
    await scene.until_idle()


async def test_a_client_that_leaves_frees_what_it_held(way: tuple[str, Scene]) -> None:
    """In the middle of a stream: the engine stops, the ledger is empty, the receipt says that the client went."""
    _, scene = way
    body = asking(max_tokens=20_000, min_tokens=20_000, ignore_eos=True, stream=True)
    async with scene.post(body, headers=KEY) as answer:
        receipt_id = answer.headers["x-hearth-request-id"]
        await answer.content.readline()
        answer.close()
    receipt = await scene.receipt(receipt_id)
    assert (receipt["status"], receipt["attempts"][0]["result"]) == (499, "client_gone")
    await scene.until_idle()

    async def pods_are_idle() -> bool:
        return all([await running(scene, pod.url) == 0 for pod in scene.pods])

    await until(pods_are_idle)


async def counted(scene: Scene, url: str, size: int) -> int | str:
    """The tokens that a pod has counted; for a prompt longer than it takes, its words about that."""
    body = BytesIO(json.dumps(asking("word " * (size // 5), max_tokens=1)).encode())
    head = KEY | {"content-type": "application/json"}
    async with scene.session.post(url + CHAT, data=body, headers=head) as answer:
        reported = await answer.json()
    return str(reported["error"]["message"]) if "error" in reported else int(reported["usage"]["prompt_tokens"])


async def running(scene: Scene, url: str) -> float:
    async with scene.session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:num_requests_running"))


async def test_many_at_once_each_get_their_own_answer(way: tuple[str, Scene]) -> None:
    """Sixty streams over one connection to the picker."""
    _, scene = way
    found = await asyncio.gather(*(stream(scene, asking(f"{number} {LONG}")) for number in range(60)))
    assert len({head["x-hearth-request-id"] for head, _ in found}) == 60
    await scene.until_idle()


async def test_rejections_are_reported_in_the_clients_dialect(way: tuple[str, Scene]) -> None:
    """A model that is none, a key that is none, a body that is none."""
    _, scene = way
    async with scene.post(asking(model="none"), headers=KEY) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")
    async with scene.post(asking(), headers={"authorization": "Bearer nobody"}) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (401, "invalid_api_key")
    async with scene.session.post(
        f"{scene.url}/v1/messages", data=b"{", headers=KEY | {"content-type": "application/json"}
    ) as answer:
        assert (answer.status, (await answer.json())["type"]) == (400, "error")
