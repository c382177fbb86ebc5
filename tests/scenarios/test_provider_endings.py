"""What becomes of a provider's stream when something else ends: the grant that let it out, or the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import aiohttp
import pytest

from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving
from tests.scenarios.cascade_pods import ESCALATES
from tests.scenarios.place import policy_of
from tests.scenarios.provider_scene import ALLOWED, KEY_VARIABLE, PRICES, ProviderScene, a_provider_scene, chat_body

NEVER = ESCALATES / 2 - 0.01

HEAD = {"authorization": "Bearer sk-allowed"}

BUDGET, MAX_TOKENS = 0.001, 40
COST = 11 * PRICES["input_cost_per_token"] + 5 * PRICES["output_cost_per_token"]
"""Of each answer, by the usage that the provider reports."""
BOUND = 100 * PRICES["input_cost_per_token"] + MAX_TOKENS * PRICES["output_cost_per_token"]
"""Of what a request reserves, at most."""


@asynccontextmanager
async def a_paused_stream(scene: ProviderScene, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream of the provider that has begun and waits."""
    scene.openai.pauses_after = 3
    body = chat_body(stream=True, max_tokens=MAX_TOKENS, **more)
    async with scene.session.post(
        scene.gateway.at("traffic", "/v1/chat/completions"), json=body, headers=HEAD
    ) as answer:
        assert answer.status == 200
        while b"content" not in await answer.content.readline():
            pass
        scene.openai.pauses_after = None
        yield answer


async def test_a_grant_that_is_revoked_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    """What has left goes on to its end and is paid; nothing more goes out, neither directly nor by a cascade."""
    async with a_provider_scene(tmp_path, {"allowed": ALLOWED}, threshold=NEVER) as scene:
        async with a_paused_stream(scene) as answer:
            (tmp_path / "policy.yaml").write_text(json.dumps(policy_of(allowed={})))
            assert (await scene.admin("/reload"))["reloaded"] is True
            status, text, _ = await scene.post(chat_body())
            assert status == 403, text
            _, text, head = await scene.post(chat_body(model="auto", stream=True))
            assert (head["x-hearth-cascade-model"], "x-hearth-providers" in head) == ("small", False), text
            assert len(scene.openai.received) == 1
            scene.openai.release()
            rest = (await answer.read()).decode()
            assert rest.endswith("data: [DONE]\n\n")
            assert '"error"' not in rest
        receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
        assert receipt["usage"]["output_tokens"] == 5
        async with scene.session.get(scene.gateway.at("admin", "/providers")) as shown:
            endpoint = (await shown.json())["endpoints"][0]
        assert (endpoint["open_requests"], endpoint["requests"]) == (0, 1)
        assert endpoint["cost"] == pytest.approx(COST)


async def test_a_cut_after_its_grant_was_revoked_is_not_mended_there(tmp_path: Path) -> None:
    """The stream ends with an error event; the provider is not asked a second time."""
    async with a_provider_scene(tmp_path, {"allowed": ALLOWED}, threshold=NEVER) as scene:
        async with a_paused_stream(scene) as answer:
            (tmp_path / "policy.yaml").write_text(json.dumps(policy_of(allowed={})))
            assert (await scene.admin("/reload"))["reloaded"] is True
            scene.openai.cuts_after = 0
            await scene.openai.stop()
            rest = (await answer.read()).decode()
            assert '"error"' in rest
        assert len(scene.openai.received) == 1


async def answered(gateway: Running, session: aiohttp.ClientSession) -> int:
    """Return how many requests the budget lets a gateway send until it rejects three in a row."""
    count = denied = 0
    while denied < 3:
        async with session.post(
            gateway.at("traffic", "/v1/chat/completions"), json=chat_body(max_tokens=MAX_TOKENS), headers=HEAD
        ) as answer:
            text = await answer.text()
            assert answer.status in (200, 429), text
            count += answer.status == 200
            denied = 0 if answer.status == 200 else denied + 1
    return count


@pytest.mark.parametrize("signal", [SIGKILL, SIGTERM])
async def test_a_gateway_that_goes_while_a_provider_streams(tmp_path: Path, signal: int) -> None:
    """Killed or ended: its share of the budget is neither spent twice nor given back before it is known to be unspent.

    Ended in order it leaves behind what its stream may have cost and no more; killed, all that it had been lent. The
    other gateway spends the rest and never more than the budget.
    """
    tenants = {"allowed": ALLOWED | {"providers_max_budget": BUDGET, "providers_budget_duration": "30d"}}
    async with redis_server(tmp_path) as redis:
        more = {"redis": redis.url, "timeouts": {"drain_s": 0.2}}
        async with (
            a_provider_scene(tmp_path, tenants, threshold=NEVER, more=more) as scene,
            serving("--config", str(tmp_path / "hearth.yaml"), variables={KEY_VARIABLE: "sk-provider"}) as other,
        ):
            async with a_paused_stream(scene) as answer:
                scene.gateway.running.send_signal(signal)
                with suppress(aiohttp.ClientError):
                    await answer.read()
            async with asyncio.timeout(60):
                await scene.gateway.running.wait()
            scene.openai.release()
            spent = COST * await answered(other, scene.session)
            assert spent + COST <= BUDGET + 1e-9
            if signal == SIGTERM:
                assert spent >= BUDGET - 2 * BOUND
            fresh = {KEY_VARIABLE: "sk-provider"}
            async with serving("--config", str(tmp_path / "hearth.yaml"), variables=fresh) as again:
                spent += COST * await answered(again, scene.session)
            assert spent + COST <= BUDGET + 1e-9
