"""Whatever becomes of the API server, what is told in the end is what it holds."""

import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.discovery.kubernetes_api import ApiUnavailable, KubernetesApi, ServiceAccount
from tests.gateway.discovery.api_server import ApiServer, api_server
from tests.gateway.discovery.cluster import PODS, QUICK, a_pod, followed
from tests.gateway.discovery.following import Heard
from tests.gateway.runtime.test_tls import make_certificate

A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        await running.put(PODS, a_pod("a", "10.0.0.1"))
        yield running


async def watches(server: ApiServer, more_than: int = 0) -> None:
    """Wait until somebody has begun another watch."""
    await server.pulse.until(lambda: server.told_watches > more_than)


async def test_a_broken_watch_goes_on_where_it_was(server: ApiServer, tmp_path: Path) -> None:
    """Nothing is listed again, and half a line is no event."""
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await watches(server)
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B)
        await server.cut_watches()
        await server.put(PODS, a_pod("c", "10.0.0.3"))
        await received.hears(A, B, C)
    assert server.lists == 1


async def test_a_watch_that_ends_in_order_is_restarted(server: ApiServer, tmp_path: Path) -> None:
    """That is what the server does every few minutes."""
    async with followed(server, tmp_path, replace(QUICK, watch_s=1.0)) as received:
        await received.hears(A)
        await watches(server, 2)
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B)
    assert server.lists == 1


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_forgotten_version_is_listed_again(server: ApiServer, tmp_path: Path, *, as_event: bool) -> None:
    """410 Gone, as an event in the watch or as its status."""
    server.is_gone_an_event = as_event
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await watches(server)
        await server.stop()
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await server.delete(PODS, "a")
        server.forget()
        await server.start()
        await received.hears(B)
    assert server.lists == 2


async def test_bookmarks_keep_a_quiet_watch_from_being_forgotten(server: ApiServer, tmp_path: Path) -> None:
    """Others change, ours do not: the version we hold goes along."""
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await watches(server)
        for number in range(5):
            await server.put("/api/v1/secrets", {"metadata": {"name": f"s{number}"}})
        reported = len(received.reported)
        await server.bookmark()
        await received.until(lambda: len(received.reported) > reported)
        server.forget()
        begun = server.told_watches
        await server.cut_watches()
        await watches(server, begun)
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B)
    assert server.lists == 1


async def test_a_version_from_before_a_restored_backup_is_listed_again(server: ApiServer, tmp_path: Path) -> None:
    """The server counts from below ours, and says that ours is too large."""
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await watches(server)
        await server.restart(version=5)
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B)


async def test_a_dead_server_costs_nothing(server: ApiServer, tmp_path: Path) -> None:
    """What it said last stands; the log says so once."""
    async with followed(server, tmp_path) as received:
        await received.hears(A)
        await watches(server)
        await server.stop()
        await received.until(lambda: bool(received.stated))
        assert received.urls == [A]
        assert received.trouble
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await server.start()
        await received.hears(A, B)
        assert not received.trouble
    assert all(received.reported)


async def test_a_list_comes_in_pages_and_begins_again_where_it_was_forgotten(server: ApiServer, tmp_path: Path) -> None:
    """Nothing is told of half a list."""
    for number in range(25):
        await server.put(PODS, a_pod(f"p{number}", f"10.0.1.{number}"))
    async with followed(server, tmp_path, replace(QUICK, page_size=10)) as received:
        await received.until(lambda: len(received.reported[-1:] and received.reported[-1]) == 26)
        assert len(received.reported[0]) == 26
    assert (server.lists, server.pages) == (1, 3)


async def test_a_token_that_was_renewed_is_taken_up(server: ApiServer, tmp_path: Path) -> None:
    """Tokens of service accounts live for an hour, their file for ever."""
    async with followed(server, tmp_path, token="old") as received:
        await received.until(lambda: "401" in received.trouble)
        (tmp_path / "token").write_text(server.token)
        await received.hears(A)


async def test_what_may_not_be_read_is_reported(server: ApiServer, tmp_path: Path) -> None:
    """With the server's own words; once it may be read it is."""
    server.forbidden.add("/pods")
    async with followed(server, tmp_path) as received:
        await received.until(lambda: "403 Forbidden" in received.trouble)
        assert received.reported == []
        server.forbidden.clear()
        await received.hears(A)
    assert server.token not in str(received.stated)


@pytest.mark.parametrize("trusted", ["localhost", "another"])
async def test_a_server_that_is_not_trusted_is_sent_nothing(tmp_path: Path, trusted: str) -> None:
    """Its certificate is for another name, or from nobody we trust: the token is not sent, and the fault is named."""
    requested = list[str]()

    async def page(request: web.Request) -> web.Response:
        requested.append(request.path)
        return web.json_response({})

    shown, ours = make_certificate(tmp_path / "shown", "localhost"), make_certificate(tmp_path / "ours", trusted)
    runner = web.ServerRunner(web.Server(page))  # type: ignore[arg-type]
    await runner.setup()
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(shown.cert, shown.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=secure).start()
    ca_file = shown.cert if trusted == "localhost" else ours.cert
    (tmp_path / "token").write_text("secret")
    account = ServiceAccount(f"https://127.0.0.1:{runner.addresses[0][1]}", "default", tmp_path / "token", ca_file)
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(ApiUnavailable, match="certificate is not trusted"):
                await KubernetesApi(account, session).list_page("/api/v1/pods", {})
    finally:
        await runner.cleanup()
    assert requested == []


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered(server: ApiServer, tmp_path: Path) -> None:
    """Pauses grow to the longest, and nothing is lost."""
    server.ends_watches_at_once = True
    async with followed(server, tmp_path, replace(QUICK, min_watch_s=3600, max_backoff_s=3600)) as received:
        await received.hears(A)
        await server.pulse.until(lambda: server.watches > 3)
        server.ends_watches_at_once = False
        await server.put(PODS, a_pod("b", "10.0.0.2"))
        await received.hears(A, B)


class Churn:
    """Changes pods at random, and breaks the server now and then."""

    def __init__(self, server: ApiServer, seed: int) -> None:
        self.server, self.draw, self.made = server, random.Random(seed), 0

    async def change(self) -> None:
        self.made += 1
        number = self.draw.randrange(1000)
        name, address = f"p{number}", f"10.{self.draw.randrange(4)}.{number // 250}.{number % 250}"
        match self.draw.randrange(10):
            case 0 | 1:
                await self.server.delete(PODS, name)
            case 2:
                await self.server.put(PODS, a_pod(name, address, {"app": "aside"}))
            case 3:
                await self.server.put(PODS, a_pod(name, None))
            case 4:
                await self.server.put(PODS, a_pod(name, address, deleting=True))
            case _:
                await self.server.put(PODS, a_pod(name, address))

    async def disturb(self) -> None:
        match self.draw.randrange(6):
            case 0:
                await self.server.cut_watches()
            case 1:
                self.server.forget()
                await self.server.cut_watches()
            case 2:
                await self.server.restart()
            case 3:
                await self.server.restart(version=self.draw.randrange(1, 50))
            case 4:
                await self.server.bookmark()
            case _:
                self.server.forget()

    def truth(self) -> list[str]:
        """What the server holds, read by other code than the source's."""
        held = (made for made in self.server.held(PODS) if made["metadata"]["labels"] == {"app": "vllm"})
        return sorted({f"http://{made['status']['podIP']}:8000" for made in held if "podIP" in made["status"]})


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_after_every_churn_the_fleet_is_the_servers(server: ApiServer, tmp_path: Path, seed: int) -> None:
    """A thousand pods, restarts, lost history, expired versions and cut watches in between."""
    churn = Churn(server, seed)
    for number in range(1000):
        await server.put(PODS, a_pod(f"p{number}", f"10.1.{number // 250}.{number % 250}"))
    async with followed(server, tmp_path) as received:
        await settles(received, churn)
        for _ in range(12):
            for _ in range(churn.draw.randrange(1, 120)):
                await churn.change()
            await churn.disturb()
            for _ in range(churn.draw.randrange(20)):
                await churn.change()
            await settles(received, churn)


async def settles(received: Heard, churn: Churn) -> None:
    await received.until(lambda: received.urls == churn.truth())
