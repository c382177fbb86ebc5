"""A pair's stream that loses its decode pod, or its prefill pod, in the middle: the rest is a pair's again."""

from __future__ import annotations

from typing import Any

import pytest

from routing.request import Api
from simulator.faults import Fault, FaultKind
from simulator.transfer.wiring import KvRole
from tests.gateway.pairs.scene import CHAT, Scene, a_scene
from tests.gateway.resume.client_view import Read, read
from tests.simulator.asking import LONG, MODEL, running

TOKENS = 24

TELLS = {"stream": True, "stream_options": {"include_usage": True}}

ASKINGS: dict[Api, tuple[str, dict[str, Any]]] = {
    Api.CHAT: (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": TOKENS, **TELLS}),
    Api.COMPLETIONS: ("/v1/completions", {"prompt": LONG, "max_tokens": TOKENS, **TELLS}),
    Api.RESPONSES: ("/v1/responses", {"input": LONG, "max_output_tokens": TOKENS, "stream": True}),
    Api.MESSAGES: (
        "/v1/messages",
        {"messages": [{"role": "user", "content": LONG}], "max_tokens": TOKENS, "stream": True},
    ),
}

ROLES = (KvRole.PRODUCER, KvRole.PRODUCER, KvRole.CONSUMER, KvRole.CONSUMER)

DECODES = 2
"""The first of those that decode."""

SAID = 9
"""Events before the loss."""


async def alone(api: Api) -> Read:
    """What a client makes of the answer of a pod that shares nothing, and that nobody disturbs."""
    path, body = ASKINGS[api]
    async with running() as (_, client):
        return read(api, (await client.post(path, {"model": MODEL, **body})).body)


def input_tokens(received: Read) -> int:
    """Of the prompt; Anthropic's API tells those apart that came of a cache or were put there."""
    words = ("prompt_tokens", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(received.usage[-1].get(word) or 0 for word in words)


def alike(received: Read) -> tuple[object, ...]:
    """What of an answer is the same whoever gives it."""
    usage = received.usage[-1]
    answered = usage.get("completion_tokens") or usage.get("output_tokens")
    return received.text, received.opened, len(received.closed), len(received.endings), input_tokens(received), answered


async def lose(scene: Scene, api: Api, *lost: int) -> Read:
    """What a client hears of a stream during which these pods are lost: its first decode pod has fallen silent then."""
    path, body = ASKINGS[api]
    scene.pods[DECODES][0].set_fault(Fault(FaultKind.MUTE, after_chunks=SAID))
    async with scene.client.session.post(scene.client.url + path, json={"model": MODEL, **body}) as answer:
        assert answer.status == 200, await answer.text()
        reported = b""
        while reported.count(b"\n\n") < SAID:
            reported += await answer.content.readany()
        for number in lost:
            scene.pods[number][0].set_fault(Fault(FaultKind.DIE))
        return read(api, reported + await answer.read())


def ways(scene: Scene) -> list[tuple[int | None, int, str]]:
    """Who prefilled and who decoded, attempt for attempt, and how it ended."""
    number = {pod.url: at for at, (pod, _) in enumerate(scene.pods)}
    return [
        (None if each.prefill_engine is None else number[each.prefill_engine], number[each.engine], each.result)
        for each in scene.attempts
    ]


async def goes_on(connector: str, api: Api, *lost: int) -> tuple[Scene, Read]:
    """A stream that loses these pods is told like one of a pod that nobody disturbs, and counted once."""
    undisturbed = await alone(api)
    async with a_scene(connector, ROLES) as scene:
        received = await lose(scene, api, *lost)
        await scene.is_quiet()
    assert alike(received) == alike(undisturbed)
    (outcome,) = scene.outcomes
    assert (outcome.status, outcome.resumes, outcome.resume_failure) == (200, 1, None)
    usage = outcome.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (input_tokens(undisturbed), TOKENS)
    warm_tokens = outcome.attempts[-1].actual_cached_input_tokens
    assert warm_tokens is not None
    assert usage.cached_tokens == min(warm_tokens, usage.prompt_tokens)
    return scene, received


@pytest.mark.parametrize("api", ASKINGS)
@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
async def test_a_decode_pod_that_is_lost_is_followed_by_another_pair(connector: str, api: Api) -> None:
    """The rest has a prefill of its own, and is decoded by the pod that is left."""
    scene, _ = await goes_on(connector, api, DECODES)
    first, second = ways(scene)
    assert (first[1:], second[1:]) == ((DECODES, "connection_reset"), (DECODES + 1, "ok"))
    assert second[0] is not None


@pytest.mark.parametrize("api", ASKINGS)
@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
async def test_the_rest_does_not_wait_for_a_prefill_pod_that_is_lost_as_well(connector: str, api: Api) -> None:
    """The prefill pod falls in the middle of the stream, and then the decode pod: the other two go on."""
    scene, _ = await goes_on(connector, api, 0, DECODES)
    assert ways(scene)[0] == (0, DECODES, "connection_reset")
    assert ways(scene)[-1] == (1, DECODES + 1, "ok")


@pytest.mark.parametrize("connector", ["NixlConnector", "MooncakeConnector"])
async def test_a_prefill_pod_that_is_lost_behind_the_first_token_is_not_missed(connector: str) -> None:
    """Its KV has been fetched: nothing is cut."""
    undisturbed = await alone(Api.CHAT)
    path, body = ASKINGS[Api.CHAT]
    async with a_scene(connector, ROLES) as scene:
        scene.pods[DECODES][0].set_fault(Fault(FaultKind.SLOW, factor=40.0))
        async with scene.client.session.post(scene.client.url + path, json={"model": MODEL, **body}) as answer:
            reported = await answer.content.readany()
            scene.pods[0][0].set_fault(Fault(FaultKind.DIE))
            received = read(Api.CHAT, reported + await answer.read())
        await scene.is_quiet()
    assert alike(received) == alike(undisturbed)
    assert ways(scene) == [(0, DECODES, "ok")]
    assert scene.outcomes[0].wasted_tokens == 0
