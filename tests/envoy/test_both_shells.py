"""One transcript through both shells, each with a fleet of its own: the same answers, decisions and metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.envoy.envoys import BUFFERED_NONE, BUFFERED_OBSERVED, DUPLEX, Way
from tests.envoy.scene import CHAT, Scene, a_scene, asking

WAYS = {"buffered": BUFFERED_NONE, "observed": BUFFERED_OBSERVED, "duplex": DUPLEX}

OTHER = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea. " * 40
TALK = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40

TRANSCRIPT: tuple[tuple[str, str, Any], ...] = (
    ("one", CHAT, asking(TALK)),
    ("one", CHAT, asking(OTHER, stream=True, stream_options={"include_usage": True})),
    ("one", CHAT, asking(TALK, stream=True, stream_options={"include_usage": True})),
    ("one", "/v1/completions", {"model": "big", "prompt": TALK, "max_tokens": 4}),
    ("one", "/v1/messages", {"model": "big", "max_tokens": 4, "messages": [{"role": "user", "content": OTHER}]}),
    ("one", "/v1/responses", {"model": "big", "input": "Hi", "max_output_tokens": 4}),
    ("gold", CHAT, asking(OTHER)),
    ("few", CHAT, asking()),
    ("few", CHAT, asking()),
    ("nobody", CHAT, asking()),
    ("one", CHAT, asking(model="none")),
    ("one", CHAT, {"messages": []}),
    ("one", CHAT, asking(temperature="hot")),
    ("one", "/v1/nothing", {}),
    ("one", CHAT, asking(max_tokens=3)),
)

TENANTS: dict[str, dict[str, Any]] = {"one": {}, "gold": {"tier": "gold"}, "few": {"rpm": 1}}

TOLD_APART = ("x-hearth-reason", "x-hearth-fault", "x-should-retry", "content-type")

OF_THE_MACHINE = ("scrape", "probe", "source", "python", "process", "met_requests")
"""Words in the names of counters that go by its clock or its load."""

OF_EVERY_MODE = ("status", "reason", "tenant", "tier", "model", "api", "stream", "downgraded_from")


async def requested(scene: Scene) -> list[tuple[object, ...]]:
    """What the clients of a transcript are told, but for what is new each time."""
    found: list[Any] = []
    for tenant, path, body in TRANSCRIPT:
        head = {"authorization": f"Bearer sk-{tenant}"}
        async with scene.session.post(scene.url + path, json=body, headers=head) as answer:
            text = await answer.text()
            stated = tuple(str(answer.headers.get(name, "")).partition(";")[0] for name in TOLD_APART)
        found.append((answer.status, stated, plain(text, answer.headers.get("x-hearth-reason"))))
        if (receipt_id := answer.headers.get("x-hearth-request-id")) is not None:
            await scene.receipt(receipt_id)
    return found


def plain(text: str, reason: str | None) -> object:
    """An answer's events or error, without ids and times. A pod's own 4xx is told in its words in some modes."""
    if text.startswith("{"):
        reported = json.loads(text)
        if "error" in reported:
            return [reported["error"][word] for word in ("type", "param", "code")] if reason else "a pod's no"
        return reported.get("usage")
    events = [line.partition("data: ")[2] for line in text.split("\n\n") if "data: {" in line]
    return [json.loads(event).get("usage") or json.loads(event).get("choices") for event in events]


async def decided(scene: Scene, *, seen: bool) -> list[dict[str, object]]:
    """Receipts in order, with pods by the order in which they were first chosen: between equals a coin decides."""
    names: dict[str, int] = {}
    found: list[Any] = []
    for receipt in reversed(await scene.receipts()):
        kept = {word: receipt[word] for word in OF_EVERY_MODE}
        kept["promised"] = receipt["slo_met"] is not None  # Whether it was kept is the machine's affair.
        kept["attempts"] = [
            (names.setdefault(attempt["engine"], len(names)), attempt["result"]) for attempt in receipt["attempts"]
        ]
        if seen:
            words = ("predicted_input_tokens", "predicted_cached_input_tokens", "actual_cached_input_tokens")
            kept["cached_tokens"] = [[attempt[word] for word in words] for attempt in receipt["attempts"]]
            kept["usage"], kept["finish_reason"] = receipt["usage"], receipt["finish_reason"]
        found.append(kept)
    return found


async def counted(scene: Scene) -> dict[str, float]:
    """What metrics count: requests, outcomes, tokens; not seconds, nor what one shell alone has, nor engines' own
    figures, which are those of the latest probe.
    """
    pods = {pod.url for pod in scene.pods}
    found = await scene.metrics()
    return {
        name: value
        for name, value in found.items()
        if "_total" in name
        and name.startswith("hearth_")
        and not name.startswith("hearth_engine_")
        and "seconds" not in name
        and not any(word in name for word in (*pods, *OF_THE_MACHINE))
    }


@pytest.mark.parametrize("name", WAYS)
async def test_the_same_transcript_gives_the_same_through_both_shells(name: str) -> None:
    """Answers, refusals and their headers; engines, warmth and usage as far as they are seen; counters."""
    way: Way = WAYS[name]
    async with (
        a_scene(None, tenants=TENANTS) as own,
        a_scene(way, tenants=TENANTS) as behind,
    ):
        assert await requested(behind) == await requested(own)
        seen = name == "duplex"
        assert await decided(behind, seen=seen) == await decided(own, seen=seen)
        if seen:
            assert await counted(behind) == await counted(own)
