"""An issuer's keys are fetched beside the traffic, follow its rotations, and outlive its absence."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.identity import issuer as module
from gateway.identity.issuer import MIN_REFRESH_INTERVAL_S, TokenIssuer
from gateway.identity.keyring import MAX_CACHED_TOKENS, Keyring
from routing.rejection import Reason, RequestRejected
from tenancy.policy import InlineFiles, Policy
from tenancy.reading.policy import read_policy
from tenancy.tenants import Tenant
from tests.gateway.identity.test_tokens import ALL, GOOD, NOW_S, jwk, jwks, token


class Clock:
    """A clock that stands still until it is told."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Said:
    """Takes events in place of a log, and can be waited for."""

    lines: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, level: str, message: str, **fields: Any) -> None:
        self.lines.append((level, message, fields))
        self.more.set()

    async def until(self, words: str) -> dict[str, Any]:
        async with asyncio.timeout(120):
            while True:
                for at, (_, message, fields) in enumerate(self.lines):
                    if words in message:
                        del self.lines[: at + 1]
                        return fields
                self.more.clear()
                await self.more.wait()


@dataclass
class Provider:
    """An identity provider: what it answers, and how often it was asked."""

    answers: dict[str, Any] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requested.append(request.path)
        found = self.answers.get(request.path)
        if isinstance(found, str):
            return web.Response(text=found)
        return found() if callable(found) else web.Response(status=500)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    held = Provider()
    app = web.Application()
    app.router.add_get("/{path:.*}", held.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        held.url = str(server.make_url("")).rstrip("/")
        held.answers["/keys"] = ALL
        yield held


@dataclass
class Scene:
    keyring: Keyring
    issuer: TokenIssuer
    clock: Clock
    stated: Said


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock, stated = Clock(), Said()
    async with aiohttp.ClientSession() as session:
        issuer = TokenIssuer(session, log_event=stated, clock=clock)  # type: ignore[arg-type]
        keyring = Keyring(None, issuer, lambda: NOW_S)
        task = asyncio.create_task(issuer.run())
        yield Scene(keyring, issuer, clock, stated)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def policy(where: str, more: str = "") -> Policy:
    source = (
        f"auth: {{jwt: {{issuer: 'https://sso.example', audiences: [hearth], tenant_claim: team, {where}}}}}\n"
        f"tenants: {{legal: {{groups: {{interns: {{rpm: 5}}}}, per_user: {{rpm: 2}}}}, search: {{}}}}\n{more}"
    )
    return read_policy(source, {}, InlineFiles())


def rejection(keyring: Keyring, shown: str) -> RequestRejected:
    with pytest.raises(RequestRejected) as rejected:
        keyring.identify(shown)
    return rejected.value


async def test_keys_are_fetched_and_tokens_then_count(provider: Provider, scene: Scene) -> None:
    """Before they are known nobody can say whether a token is good: later, not never."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    early = rejection(scene.keyring, token())
    assert (early.reason, early.retry_after_s) == (Reason.JWKS_UNAVAILABLE, 1.0)
    assert (await scene.stated.until("jwks_loaded"))["keys"] == 3
    caller = scene.keyring.identify(token())
    assert (caller.tenant.name, caller.user) == ("legal", "ann")
    assert [account.path for account in caller.accounts] == ["legal/user/ann"]
    assert scene.keyring.identify(token()).tenant is caller.tenant


async def test_the_issuer_says_where_its_keys_are(provider: Provider, scene: Scene) -> None:
    """By its discovery document, if that is really its own."""
    path = "/.well-known/openid-configuration"
    issuer = f"issuer: '{provider.url}', audiences: [hearth], default_tenant: legal"
    provider.answers[path] = f'{{"issuer": "{provider.url}", "jwks_uri": "{provider.url}/keys"}}'
    scene.keyring.policy = read_policy(f"auth: {{jwt: {{{issuer}}}}}\ntenants: {{legal: {{}}}}", {}, InlineFiles())
    await scene.stated.until("jwks_loaded")
    assert scene.keyring.identify(token(iss=provider.url)).tenant.name == "legal"
    assert provider.requested == [path, "/keys"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ('{"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys"}', "another issuer's"),
        ('{"jwks_uri": "https://sso.example/keys"}', "document is none"),
        ("[]", "document is none"),
        ("<html>", "document is none"),
        ('{"issuer": "HERE", "jwks_uri": "file:///etc/passwd"}', "must be an https:// URL"),
        ('{"issuer": "HERE", "jwks_uri": "http://10.0.0.1/keys"}', "must be an https:// URL"),
    ],
)
async def test_a_false_discovery_document_leads_nowhere(
    provider: Provider, scene: Scene, document: str, words: str
) -> None:
    """What is wrong is logged."""
    provider.answers["/.well-known/openid-configuration"] = document.replace("HERE", provider.url)
    issuer = f"issuer: '{provider.url}', audiences: [hearth], default_tenant: legal"
    scene.keyring.policy = read_policy(f"auth: {{jwt: {{{issuer}}}}}\ntenants: {{legal: {{}}}}", {}, InlineFiles())
    assert words in (await scene.stated.until("jwks_fetch_failed"))["error"]
    assert scene.issuer.keys is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=302, headers={"location": "/keys"}),
        lambda: web.Response(status=404),
        lambda: web.Response(text=ALL + " " * module.MAX_RESPONSE_BYTES),
        lambda: web.Response(body=b"\xff\xfe"),
        lambda: web.Response(text="{}"),
    ],
)
async def test_a_bad_answer_is_no_key_set(
    provider: Provider, scene: Scene, answer: Callable[[], web.StreamResponse]
) -> None:
    """A redirect, an error, too much, no text, no keys."""
    provider.answers["/odd"] = answer
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/odd'")
    await scene.stated.until("jwks_fetch_failed")
    assert scene.issuer.keys is None


async def test_a_rotated_key_is_found_when_it_is_shown(provider: Provider, scene: Scene) -> None:
    """Who shows it is told to come back; strangers cannot have the issuer asked all the time."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    await scene.stated.until("jwks_loaded")
    rotated = token(kid="RSA-2")
    assert rejection(scene.keyring, rotated).reason is Reason.INVALID_KEY  # just asked: it would know
    provider.answers["/keys"] = jwks(jwk("RSA", kid="RSA-2"))
    scene.clock.now_s += MIN_REFRESH_INTERVAL_S
    assert rejection(scene.keyring, rotated).reason is Reason.JWKS_UNAVAILABLE
    await scene.stated.until("jwks_loaded")
    assert scene.keyring.identify(rotated).tenant.name == "legal"
    assert provider.requested == ["/keys", "/keys"]


async def test_a_key_that_is_gone_signs_no_more(provider: Provider, scene: Scene) -> None:
    """Not even what was verified before."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    await scene.stated.until("jwks_loaded")
    assert scene.keyring.identify(token()).tenant.name == "legal"
    provider.answers["/keys"] = jwks(jwk("EC"))
    scene.clock.now_s += MIN_REFRESH_INTERVAL_S
    assert scene.issuer.request_refresh()
    await scene.stated.until("jwks_loaded")
    assert "is signed with an unknown key" in rejection(scene.keyring, token()).message


async def test_another_key_of_the_same_name_counts(provider: Provider, scene: Scene) -> None:
    """A careless issuer's rotation; the old key then signs no more."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    await scene.stated.until("jwks_loaded")
    other = rsa.generate_private_key(65537, 2048)
    shown = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(other.public_key())), "kid": "RSA"}
    provider.answers["/keys"] = jwks(shown)
    scene.clock.now_s += MIN_REFRESH_INTERVAL_S
    assert scene.issuer.request_refresh()
    await scene.stated.until("jwks_loaded")
    assert "signature" in rejection(scene.keyring, token()).message
    assert scene.keyring.identify(jwt.encode(GOOD, other, "RS256", headers={"kid": "RSA"})).tenant.name == "legal"


async def test_known_keys_outlive_the_issuers_absence(provider: Provider, scene: Scene) -> None:
    """It is said, and tokens go on being good."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    await scene.stated.until("jwks_loaded")
    provider.answers.clear()
    scene.clock.now_s += MIN_REFRESH_INTERVAL_S
    assert scene.issuer.request_refresh()
    assert "answers 500" in (await scene.stated.until("jwks_fetch_failed"))["error"]
    assert scene.keyring.identify(token()).tenant.name == "legal"


async def test_keys_of_a_file_are_there_at_once(scene: Scene) -> None:
    """And nobody is asked for others."""
    source = (
        "auth: {jwt: {issuer: 'https://sso.example', audiences: [hearth], tenant_claim: team, jwks_file: keys}}\n"
        "tenants: {legal: {}}"
    )

    class KvFile(InlineFiles):
        def text(self, path: str) -> str:
            return ALL

    scene.keyring.policy = read_policy(source, {}, KvFile())
    assert scene.keyring.identify(token()).tenant.name == "legal"
    assert rejection(scene.keyring, token(kid="other")).reason is Reason.INVALID_KEY


async def test_what_a_token_says_is_looked_up(provider: Provider, scene: Scene) -> None:
    """Tenant and group among those of the policy; no tenant, or several, is nobody."""
    scene.keyring.policy = policy(f"jwks_url: '{provider.url}/keys', group_claim: groups")
    await scene.stated.until("jwks_loaded")
    assert scene.keyring.identify(token(groups=["staff", "interns"])).group == "interns"
    assert scene.keyring.identify(token(team=["strangers", "search"])).tenant.name == "search"
    assert "several tenants" in rejection(scene.keyring, token(team=["legal", "search"])).message
    unknown = rejection(scene.keyring, token(team="strangers"))
    assert unknown.reason is Reason.INVALID_KEY
    assert "strangers" not in unknown.message
    assert "no tenant" in rejection(scene.keyring, token(team=None)).message


async def test_a_verified_token_is_good_until_it_expires(provider: Provider, scene: Scene) -> None:
    """And no longer than the policy under which it was; few enough are remembered."""
    now_s = NOW_S
    keyring = scene.keyring = Keyring(None, scene.issuer, lambda: now_s)
    keyring.policy = policy(f"jwks_url: '{provider.url}/keys'")
    await scene.stated.until("jwks_loaded")
    assert keyring.identify(token()) is keyring.identify(token())
    for at in range(20):
        keyring.identify(token(jti=str(at)))
    assert len(keyring._verified) == 21 <= MAX_CACHED_TOKENS
    now_s += 91
    assert "expired" in rejection(keyring, token()).message
    now_s = NOW_S
    assert keyring.identify(token()).accounts
    keyring.policy = replace(held := keyring.policy, tenants={**held.tenants, "legal": Tenant("legal")})
    assert not keyring.identify(token()).accounts
    keyring.policy = read_policy("auth: {default_tenant: a}", {}, InlineFiles())
    assert "Invalid API key" in rejection(keyring, token()).message
