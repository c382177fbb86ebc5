"""Providers that never end what they have begun, and links that are cut silently."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.gateway.hostile_links import ENDLESS, a_link, an_endless_server
from tests.gateway.kv_index.redis_servers import free_port
from tests.scenarios.cascade_pods import ESCALATES
from tests.scenarios.provider_scene import ALLOWED, ProviderScene, a_provider_scene, chat_body

NEVER = ESCALATES / 2 - 0.01


async def shown(scene: ProviderScene) -> dict[str, Any]:
    """The first endpoint as the admin port shows it."""
    async with scene.session.get(scene.gateway.at("admin", "/providers")) as answer:
        return dict((await answer.json())["endpoints"][0])


async def until_state(scene: ProviderScene, wanted: str) -> None:
    """Wait until the first endpoint is in a state."""
    async with asyncio.timeout(120):
        while (await shown(scene))["state"] != wanted:
            pass


async def test_answers_that_never_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each is given up by a time limit of the endpoint, streamed or not; the error names it; three open its breaker."""
    async with an_endless_server() as endless:
        endpoint = {
            "base_url": f"http://127.0.0.1:{endless.port}",
            "first_byte_timeout_s": 0.5,
            "response_timeout_s": 1.0,
        }
        folder = tmp_path_factory.mktemp("endless")
        async with a_provider_scene(folder, {"allowed": ALLOWED}, threshold=NEVER, endpoint=endpoint) as scene:
            for number, way in enumerate(ENDLESS, 1):
                endless.way = way
                results = await asyncio.gather(
                    *(scene.post(chat_body(f"{number}", stream=stream)) for stream in (True, False)),
                    return_exceptions=True,
                )
                for result in results:
                    # A body that has begun can only be broken off.
                    assert not isinstance(result, BaseException) or way == "body", (way, result)
                    if isinstance(result, tuple):
                        status, text, head = result
                        assert '"error"' in text, (way, text)
                        assert status == 200 or head["x-hearth-reason"] in ("pod_timeout", "pod_invalid_response"), way
                        assert "acme-eu" in text, (way, text)
                await endless.pulse.until(partial(endless.has_closed, 2 * number))
            assert (await shown(scene))["open_requests"] == 0
            assert (await shown(scene))["state"] == "failing"
            status, _, head = await scene.post(chat_body(model="auto", stream=True))
            assert (status, head["x-hearth-cascade-model"]) == (200, "small")


async def test_a_link_that_swallows_what_is_sent(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No FIN, no RST: escalations under way get the fleet's answer without waiting for the first byte's time-out.

    Later requests are not escalated until the link answers again. The time-out is ten minutes here, so only the check
    of the link can have ended them.
    """
    port = free_port()
    async with a_link(port) as link:
        endpoint = {
            "base_url": f"http://127.0.0.1:{link.port}",
            "first_byte_timeout_s": 600,
            "quirks": {"probe_path": "/models"},
        }
        folder = tmp_path_factory.mktemp("swallowed")
        async with a_provider_scene(folder, {"allowed": ALLOWED}, threshold=NEVER, endpoint=endpoint) as scene:
            await scene.openai.stop()
            scene.openai.port = port
            await scene.openai.start()
            _, text, head = await scene.post(chat_body(model="auto", stream=True))
            assert head["x-hearth-cascade-model"] == "cloud", text
            scene.openai.is_silent = True  # A provider that thinks for long is no link that is cut.
            thinking = asyncio.create_task(scene.post(chat_body("thinks", model="auto", stream=True)))
            await scene.openai.pulse.until(lambda: scene.openai.probes >= 2)
            assert (await shown(scene))["state"] == "usable"
            link.is_frozen = True
            under_way = [scene.post(chat_body(f"{number}", model="auto", stream=True)) for number in range(3)]
            for status, text, head in await asyncio.gather(thinking, *under_way):
                assert (status, head["x-hearth-cascade-model"]) == (200, "small"), text
            assert (await shown(scene))["state"] == "unreachable"
            assert link.swallowed == 3  # None was sent a second time over a fresh connection.
            sent = (await shown(scene))["requests"]
            for _ in range(5):
                _, _, head = await scene.post(chat_body(model="auto", stream=True))
                assert head["x-hearth-cascade-model"] == "small"
            assert (await shown(scene))["requests"] == sent
            scene.openai.release()
            link.is_frozen = False
            await until_state(scene, "usable")
            _, text, head = await scene.post(chat_body(model="auto", stream=True))
            assert head["x-hearth-cascade-model"] == "cloud", text
