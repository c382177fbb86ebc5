"""Callers with tokens, as a whole gateway serves them."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.app.test_serving import CHAT, requested
from tests.gateway.identity.test_tokens import ALL, private
from tests.gateway.running import Running, serving

FAR_S = 4e9
"""Some time next century."""


@pytest.fixture
async def issuer() -> AsyncIterator[str]:
    """The URL of an identity provider that tells of itself and shows its keys."""

    async def discovery(request: web.Request) -> web.Response:
        here = f"http://127.0.0.1:{request.url.port}"
        return web.json_response({"issuer": here, "jwks_uri": f"{here}/keys"})

    async def keys(request: web.Request) -> web.Response:
        return web.Response(text=ALL)

    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", discovery)
    app.router.add_get("/keys", keys)
    async with TestServer(app, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}"


async def test_a_token_of_the_issuer_is_served_and_no_other(issuer: str, tmp_path: Path) -> None:
    """Found by discovery; tenant, user and limits are those that the token names. Nothing of it is logged."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"auth: {{jwt: {{issuer: '{issuer}', audiences: [hearth], tenant_claim: team}}}}\n"
        "tenants: {legal: {}, search: {models: [other]}}\n"
    )

    def token(**claims: object) -> str:
        reported = {"iss": issuer, "aud": "hearth", "exp": FAR_S, "sub": "ann", "team": "legal", **claims}
        return jwt.encode(reported, private("RSA"), "RS256", headers={"kid": "RSA"})

    async def status(gateway: Running, bearer: str) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {bearer}"}
        url = gateway.at("traffic", CHAT)
        async with (
            aiohttp.ClientSession() as client,
            client.post(url, json=requested(stream=False), headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    async with (
        SimulatedPod(Options(models=("tiny",))) as pod,
        serving("--pod", pod.url, "--policy", str(policy)) as gateway,
    ):
        seen = {"pod_state_changed", "jwks_loaded"}
        while not seen <= {line["event"] for line in gateway.lines}:
            missing = next(iter(seen - {line["event"] for line in gateway.lines}))
            await gateway.until(missing)
        good = token()
        assert (await status(gateway, good))[0] == 200
        line = await gateway.until("request_completed")
        assert line["tenant"] == "legal"
        assert (await status(gateway, token(team="search")))[0] == 404
        for bad in (token(aud="other"), token(exp=1.0), token(team="strangers"), good[:-8] + "AAAAAAAA", "a.b.c"):
            code, reported = await status(gateway, bad)
            assert (code, "invalid_api_key" in reported) == (401, True)
            assert bad not in reported
        assert not any(good in str(line) or "strangers" in str(line) for line in gateway.lines)
