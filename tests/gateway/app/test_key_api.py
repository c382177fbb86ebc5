"""The key API of a running gateway: a token or a certificate opens it, and its changes bind the traffic port."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from simulator.options import Options
from simulator.pod import SimulatedPod
from tests.gateway.identity.test_tokens import ALL, token
from tests.gateway.kv_index.redis_servers import redis_server
from tests.gateway.running import Running, serving
from tests.gateway.runtime.test_tls import make_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")

NO_REDIS = "redis://127.0.0.1:9"


@asynccontextmanager
async def an_issuer() -> AsyncIterator[str]:
    """The URL of signing keys."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=ALL)

    app = web.Application()
    app.router.add_get("/keys", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/keys"))


@asynccontextmanager
async def a_gateway(
    folder: Path, pod: SimulatedPod, jwks: str, *, keys_in: str | None = None, **key_api: Any
) -> AsyncIterator[tuple[Running, str]]:
    """A gateway whose Redis is down, and the address of its key API. `keys_in`: a Redis that has its keys."""
    keys = folder / "keys"
    keys.mkdir()
    policy = {"auth": {"keys_dir": str(keys)}, "tenants": {"legal": {}, "search": {}}}
    (folder / "policy.json").write_text(json.dumps(policy))
    oidc = {"issuer": "https://sso.example", "audiences": ["hearth"], "jwks_url": jwks}
    section = {"listen": "127.0.0.1:0", "keys_dir": str(keys), "audit_log": str(folder / "audit.jsonl"), "oidc": oidc}
    config = {
        "policy": str(folder / "policy.json"),
        "redis": keys_in or NO_REDIS,
        **({"key_store": {"mirror_dir": str(keys)}} if keys_in else {}),
        "discovery": {"static": {"pods": [pod.url]}},
        "key_api": section | key_api,
    }
    (folder / "hearth.json").write_text(json.dumps(config))
    async with serving("--config", str(folder / "hearth.json")) as gateway:
        line = next(line for line in gateway.lines if line["event"] == "key_api_listening")
        yield gateway, str(line["listen"][0])


def bearer(**claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(exp=time.time() + 600, **claims)}"}


async def status_of(session: aiohttp.ClientSession, gateway: Running, key: str) -> int:
    async with session.get(gateway.at("traffic", "/v1/models"), headers={"authorization": f"Bearer {key}"}) as answer:
        return answer.status


async def test_a_key_works_until_it_is_revoked_with_redis_down(tmp_path: Path) -> None:
    """By the token of a tenant-admin; the gateway takes each change up from the folder alone."""
    async with (
        an_issuer() as jwks,
        SimulatedPod(Options(models=("tiny",))) as pod,
        a_gateway(tmp_path, pod, jwks) as (gateway, at),
        aiohttp.ClientSession() as session,
    ):
        admin = bearer(hearth_role="tenant-admin", hearth_tenant="legal")
        keys = f"http://{at}/v1/tenants/legal/keys"
        while True:  # Until the issuer's keys were fetched.
            async with session.post(keys, json={"id": "ci"}, headers=admin) as answer:
                if answer.status != 503:
                    break
        async with session.get(f"{keys}/ci", headers=admin) as answer:
            assert answer.status == 200
            etag = answer.headers["etag"]
        async with session.post(
            f"{keys}/ci/rotate", json={"grace_period_s": 600}, headers=admin | {"if-match": etag}
        ) as answer:
            fresh = await answer.json()
        await gateway.until("policy_reloaded")
        assert await status_of(session, gateway, fresh["key"]) == 200
        assert await status_of(session, gateway, "sk-hearth-guessed") == 401
        revoking = session.delete(f"{keys}/{fresh['id']}", headers=admin | {"if-match": fresh["etag"]})
        async with revoking as answer:
            assert answer.status == 204
        await gateway.until("policy_reloaded")
        assert await status_of(session, gateway, fresh["key"]) == 401
        async with session.get(keys.replace("legal", "search"), headers=admin) as answer:
            assert answer.status == 404
        for headers in ({}, {"authorization": f"Bearer {fresh['key']}"}, bearer(hearth_role="root")):
            async with session.get(keys, headers=headers) as answer:
                assert answer.status == 401
        gateway.running.send_signal(signal.SIGTERM)
        assert await gateway.end() == 0
    assert not any(fresh["key"] in json.dumps(line) for line in gateway.lines)


async def test_keys_in_redis_outlive_it_until_they_are_revoked(tmp_path: Path) -> None:
    """A gateway takes a key up from Redis; while Redis is down the key stays valid, and its revocation binds."""
    async with (
        redis_server(tmp_path / "redis") as redis,
        an_issuer() as jwks,
        SimulatedPod(Options(models=("tiny",))) as pod,
        a_gateway(tmp_path, pod, jwks, keys_in=redis.url) as (gateway, at),
        aiohttp.ClientSession() as session,
    ):
        operator, keys = bearer(hearth_role="operator"), f"http://{at}/v1/tenants/legal/keys"
        while True:  # Until the issuer's keys were fetched.
            async with session.post(keys, json={"id": "ci"}, headers=operator) as answer:
                if answer.status != 503:
                    made = await answer.json()
                    break
        await gateway.until("policy_reloaded")
        assert await status_of(session, gateway, made["key"]) == 200
        await redis.kill()
        await gateway.until("key_store_lost")
        assert await status_of(session, gateway, made["key"]) == 200
        async with session.post(keys, json={}, headers=operator) as answer:
            assert answer.status == 503
        revoking = session.delete(f"{keys}/ci", headers=operator | {"if-match": made["etag"]})
        async with revoking as answer:
            assert answer.status == 202
        await gateway.until("policy_reloaded")
        assert await status_of(session, gateway, made["key"]) == 401


async def test_a_certificate_with_a_role_opens_it(tmp_path: Path) -> None:
    """One of another authority, or none, does not get as far as HTTP."""
    server, client, other = (make_certificate(tmp_path / name, f"{name}.example") for name in ("server", "ci", "other"))
    tls = {"cert": str(server.cert), "key": str(server.key), "client_ca": str(client.cert)}
    clients = [{"name": "ci.example", "role": "operator"}]
    async with (
        an_issuer() as jwks,
        SimulatedPod(Options(models=("tiny",))) as pod,
        a_gateway(tmp_path, pod, jwks, tls=tls, clients=clients) as (_, at),
        aiohttp.ClientSession() as session,
    ):

        async def ask(shown: Any) -> int:
            context = ssl.create_default_context(cafile=server.cert)
            context.check_hostname = False
            if shown is not None:
                context.load_cert_chain(shown.cert, shown.key)
            async with session.post(f"https://{at}/v1/tenants/legal/keys", json={}, ssl=context) as answer:
                return answer.status

        async with asyncio.timeout(60):
            assert await ask(client) == 201
            for shown in (None, other):
                with pytest.raises(aiohttp.ClientError):
                    await ask(shown)
    assert len(list((tmp_path / "keys/legal").iterdir())) == 1
