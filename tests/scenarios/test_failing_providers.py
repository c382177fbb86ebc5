"""Providers that fail in ways that they document: out of reach, storms of 429, silence, a wrong key, cut streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.scenarios.cascade_pods import ESCALATES, KEEPS
from tests.scenarios.provider_scene import ALLOWED, GRANT, ProviderScene, a_provider_scene, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEVER = ESCALATES / 2 - 0.01


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProviderScene]:
    """No local answer of `auto` is accepted; the key of the endpoint is in a file, its first byte due soon."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "acme.key").write_text("sk-provider")
    endpoint = {"api_key": None, "api_key_file": str(folder / "acme.key"), "first_byte_timeout_s": 1.0}
    async with a_provider_scene(folder, threshold=NEVER, endpoint=endpoint) as place:
        yield place


async def state_of(scene: ProviderScene) -> str:
    async with scene.session.get(scene.gateway.at("admin", "/providers")) as answer:
        return str((await answer.json())["endpoints"][0]["state"])


async def until_state(scene: ProviderScene, wanted: str) -> None:
    """Wait until the endpoint is in a state."""
    async with asyncio.timeout(120):
        while await state_of(scene) != wanted:
            pass


async def is_local(scene: ProviderScene) -> bool:
    """Whether a cascade is answered by the fleet now."""
    status, text, head = await scene.post(chat_body(model="auto", stream=True))
    assert status == 200, text
    return head["x-hearth-cascade-model"] == "small"


async def test_out_of_reach(scene: ProviderScene) -> None:
    """Local answers go on at once, nothing is tried with a request until it connects again; then escalation resumes."""
    assert not await is_local(scene)
    await scene.openai.stop()
    status, text, head = await scene.post(chat_body())
    assert (status, head["x-hearth-reason"]) == (502, "pod_unreachable"), text
    assert "acme-eu" in text
    assert await state_of(scene) == "unreachable"
    assert await is_local(scene)
    await scene.openai.start()
    await until_state(scene, "usable")
    assert not await is_local(scene)


async def test_escalations_under_way_when_the_backhaul_is_cut(scene: ProviderScene) -> None:
    """Every client gets an answer of the fleet, and the receipt says that its request may have left."""
    scene.openai.is_silent = True
    under_way = [asyncio.create_task(scene.post(chat_body(f"{number}", "auto", stream=True))) for number in range(4)]
    await scene.openai.pulse.until(
        lambda: all(f'"{number}"'.encode() in scene.openai.all_bytes() for number in range(4))
    )
    scene.openai.is_silent = False
    await scene.openai.stop()
    for status, text, head in await asyncio.gather(*under_way):
        assert (status, head["x-hearth-cascade-model"]) == (200, "small"), text
        assert head["x-hearth-providers"] == "acme/eu"
    await scene.openai.start()
    await until_state(scene, "usable")


async def test_a_storm_of_429(scene: ProviderScene) -> None:
    """One answer with `Retry-After` is enough: nothing is sent until it has passed."""
    scene.openai.status, scene.openai.retry_after = 429, "3"
    status, text, head = await scene.post(chat_body())
    assert (status, head["x-hearth-reason"]) == (503, "pod_busy"), text
    assert "what you said" not in text
    before = len(scene.openai.received)
    assert all([await is_local(scene) for _ in range(5)]) or await state_of(scene) == "usable"
    if await state_of(scene) == "busy":
        assert len(scene.openai.received) == before
    scene.openai.status, scene.openai.retry_after = 200, None
    await until_state(scene, "usable")
    assert not await is_local(scene)


async def test_a_provider_that_is_silent(scene: ProviderScene) -> None:
    """The first byte is due in time; three such failures open the breaker, and a trial closes it."""
    scene.openai.is_silent = True
    status, text, head = await scene.post(chat_body())
    assert (status, head["x-hearth-reason"]) == (504, "pod_timeout"), text
    async with asyncio.timeout(60):
        while await state_of(scene) == "usable":
            assert await is_local(scene)
    assert await state_of(scene) == "failing"
    scene.openai.is_silent = False
    scene.openai.released.set()
    scene.openai.released = asyncio.Event()
    await until_state(scene, "usable")
    assert not await is_local(scene)


async def test_a_provider_stands_in_for_a_model_of_the_fleet(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By its rank it is not used while the fleet answers; once the pod has gone, for the tenant with a grant alone."""
    endpoint = {"models": {"cloud": "acme-large", "small": "acme-small"}}
    grant = GRANT | {"models": ["cloud", "small"]}
    tenants: dict[str, dict[str, Any]] = {"allowed": ALLOWED | {"providers": [grant]}, "denied": {}}
    folder = tmp_path_factory.mktemp("fallback")
    async with a_provider_scene(folder, tenants, endpoint=endpoint) as place:
        for _ in range(3):
            assert "x-hearth-providers" not in (await place.post(chat_body(model="small")))[2]
        await place.local.stop()
        status, text, head = await place.post(chat_body(model="small"))
        assert (status, head["x-hearth-providers"]) == (200, "acme/eu"), text
        assert place.openai.received[-1].body["model"] == "acme-small"
        status, text, head = await place.post(chat_body(model="small"), "denied")
        assert status in (502, 503), text
        assert head["x-hearth-reason"] in ("no_pod_ready", "pod_unreachable")
        assert len(place.openai.received) == 1


async def test_a_wrong_key(scene: ProviderScene) -> None:
    """Only an operator can help: the endpoint is left alone, the error names the setting, a reload mends it."""
    scene.openai.key = "sk-rotated"
    status, text, head = await scene.post(chat_body())
    assert (status, head["x-hearth-reason"]) == (502, "pod_error"), text
    assert "api_key" in json.loads(text)["error"]["message"]
    assert await state_of(scene) == "key_rejected"
    assert await is_local(scene)
    (scene.folder / "acme.key").write_text("sk-rotated")
    assert (await scene.admin("/reload"))["reloaded"] is True
    assert await state_of(scene) == "usable"
    assert not await is_local(scene)


async def test_a_request_that_the_provider_rejects(scene: ProviderScene) -> None:
    """A 400 is the client's own: it gets the provider's words, and the endpoint is not blamed."""
    scene.openai.status = 400
    status, text, _ = await scene.post(chat_body())
    scene.openai.status = 200
    assert status == 400
    assert "what you said" in text
    assert await state_of(scene) == "usable"


async def test_a_stream_that_is_cut(scene: ProviderScene) -> None:
    """It ends with an error event: no pod of the fleet could continue another model's answer."""
    scene.openai.cuts_after = 3
    _, text, head = await scene.post(chat_body(stream=True))
    scene.openai.cuts_after = None
    assert '"error"' in text
    receipt = await scene.receipt(head["x-hearth-request-id"])
    assert receipt["resume_failure"] == "provider"
    await until_state(scene, "usable")


def canaries(name: str) -> dict[str, Any]:
    """A request with a marked prompt and a marked tool."""
    tool = {"type": "function", "function": {"name": f"tool_{name}", "parameters": {"type": "object"}}}
    return chat_body(f"prompt-{name}", "auto", tools=[tool], user=f"user-{name}")


async def test_shadows_and_judges_leave_only_with_a_grant(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Accepted answers are compared with the provider's, and judged by it, for the tenant that allows that alone."""
    shadow = {"shadow": {"share": 1.0, "judge_model": "cloud"}}
    tenants: dict[str, dict[str, Any]] = {
        "allowed": ALLOWED,
        "denied": {},
        "isolated": {"cache_isolation": "tenant"},
    }
    folder = tmp_path_factory.mktemp("shadows")
    async with a_provider_scene(folder, tenants, threshold=KEEPS, cascade=shadow) as place:
        for tenant in ("denied", "isolated"):
            for stream in (True, False):
                status, text, head = await place.post(canaries(tenant) | {"stream": stream}, tenant)
                assert (status, head["x-hearth-cascade-model"]) == (200, "small"), text
        kept = canaries("local") | {"stream": False}
        assert (await place.post(kept, x_hearth_local_only="true"))[0] == 200
        assert (await place.post(canaries("allowed")))[2]["x-hearth-cascade-model"] == "small"
        await place.openai.pulse.until(lambda: b"prompt-allowed" in place.openai.all_bytes())
        seen = place.openai.all_bytes() + place.anthropic.all_bytes()
        for name in ("denied", "isolated", "local"):
            assert f"prompt-{name}".encode() not in seen
            assert f"tool_{name}".encode() not in seen
        assert b"user-allowed" not in seen
