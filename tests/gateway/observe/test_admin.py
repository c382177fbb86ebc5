"""The admin port shows why and where, drains and reloads; beyond loopback only with its token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.config.discovery import DiscoveredPod
from gateway.config.fields import Secret
from gateway.discovery.source import StaticSource
from gateway.fleet.probe import Prober, probe_session
from gateway.fleet.watcher import FleetWatcher, ProbeIntervals
from gateway.observe.admin import AdminBackend, admin_app
from gateway.observe.receipts import ReceiptStore
from routing.decision.router import Router
from routing.pods import PodState
from scorers.registry import routings
from tests.gateway.fake_pod import FakePod, Pulse, fake_pods, metrics_page
from tests.gateway.samples import a_request, an_attempt, an_outcome

Client = TestClient[Any, Any]


@asynccontextmanager
async def admin_client(
    *urls: str, token: str | None = None, reported: dict[str, object] | None = None, router: Router | None = None
) -> AsyncIterator[Client]:
    """A client of an admin port with a running watcher behind it, whose pods are all ready."""
    router, receipts, clock, pulse = (
        router or Router(routings()["warm"]),
        ReceiptStore(),
        asyncio.get_running_loop().time,
        Pulse(),
    )
    receipts.on_outcome(an_outcome())
    receipts.on_outcome(
        an_outcome(request=a_request(id="r-2"), status=502, attempts=(an_attempt(result="connection_reset"),))
    )

    async def reload() -> dict[str, object]:
        return reported or {"reloaded": True}

    async with probe_session() as session:
        watcher = FleetWatcher(
            router,
            [StaticSource(map(DiscoveredPod, urls))],
            Prober(session, lambda _: None),
            log_event=lambda *_, **__: pulse.beat(),
            clock=clock,
            draw=lambda: 0.5,
            rhythm=ProbeIntervals(probe_s=60),
        )
        admin = AdminBackend(
            receipts, router, watcher, lambda: {"listen": "x"}, reload, clock, Secret(token) if token else None
        )
        task = asyncio.create_task(watcher.run())
        try:
            await pulse.until(lambda: sum(pod.state is PodState.READY for pod in router.fleet.pods) == len(urls))
            async with TestClient(TestServer(admin_app(admin))) as client:
                yield client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def pod() -> AsyncIterator[FakePod]:
    pod = FakePod(page=metrics_page(running=2))
    async with fake_pods(pod):
        yield pod


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("since=2026-11-20T14:53:18Z", 2),
        ("since=2026-11-20T15:53:18%2B01:00", 2),
        ("since=2026-11-20T15:53:18+01:00", 2),
        ("since=2026-11-20T14:53:19", 0),
        ("until=1795186398.25", 2),
        ("until=1795186398", 0),
        ("id=r-2", 1),
        ("reason=overloaded", 0),
        ("pod=http://a:1&tenant=legal", 2),
    ],
)
async def test_receipts_are_found_by_time_id_and_reason(query: str, count: int) -> None:
    """Unix seconds or RFC 3339, whose plus sign a client may leave as it is; without an offset it is UTC."""
    async with admin_client() as client:
        found = await (await client.get(f"/receipts?{query}")).json()
        assert len(found["receipts"]) == count


async def test_receipts_report_why() -> None:
    """The latest first, filtered, and one by its id with all its attempts."""
    async with admin_client() as client:
        listed = await (await client.get("/receipts")).json()
        assert [receipt["id"] for receipt in listed["receipts"]] == ["r-2", "r-1"]
        failed = await (await client.get("/receipts", params={"status": "502"})).json()
        assert [receipt["id"] for receipt in failed["receipts"]] == ["r-2"]
        assert len((await (await client.get("/receipts?limit=1")).json())["receipts"]) == 1
        assert (await (await client.get("/receipts?limit=0")).json())["receipts"] == []
        receipt = await (await client.get("/receipts/r-1")).json()
        assert receipt["attempts"][0]["candidates"][0]["scores_s"] == {"prefill": 0.1}
        assert receipt["attempts"][0]["predicted_cached_input_tokens"] == 64
        assert receipt["usage"] == {"input_tokens": 100, "output_tokens": 11, "cached_input_tokens": 96}


async def test_brief_receipts_have_no_candidates() -> None:
    """A page lists hundreds of them; found by id they are as few."""
    async with admin_client() as client:
        listed = (await (await client.get("/receipts?brief=1&id=r-1")).json())["receipts"]
        assert [(receipt["id"], receipt["attempts"][0]["candidates"]) for receipt in listed] == [("r-1", [])]


async def test_one_pod_of_the_fleet_is_shown(pod: FakePod) -> None:
    """By its URL; of another one nothing."""
    async with admin_client(pod.url) as client:
        for url, count in ((pod.url, 1), ("http://other:1", 0)):
            assert len((await (await client.get("/fleet", params={"pod": url})).json())["pods"]) == count


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/receipts?status=many", 400, "status must be a whole number"),
        ("/receipts?limit=-1", 400, "limit must be a whole number"),
        ("/receipts?modle=x", 400, "unknown filter: modle"),
        ("/receipts?since=yesterday", 400, "since must be Unix seconds or a time like 2026-11-27T08:00:00Z"),
        ("/receipts?until=1e99", 400, "until must be Unix seconds or a time like 2026-11-27T08:00:00Z"),
        ("/receipts/nothing", 404, "no receipt of that id among the last 2"),
        ("/nothing", 404, "404: Not Found"),
        ("/pods/drain", 405, "405: Method Not Allowed"),
    ],
)
async def test_wrong_questions_get_a_clear_answer(path: str, status: int, words: str) -> None:
    """As JSON too."""
    async with admin_client() as client:
        answer = await client.get(path)
        assert (answer.status, await answer.json()) == (status, {"error": words})


async def test_the_fleet_is_shown(pod: FakePod) -> None:
    """Pods with standing and breaker, engines with capacity, ledger and load of others, models with their pods."""
    async with admin_client(pod.url) as client:
        fleet = await (await client.get("/fleet")).json()
        (shown,) = fleet["pods"]
        assert (shown["url"], shown["state"], shown["models"]) == (pod.url, "ready", ["tiny"])
        assert shown["breaker"] == {"state": "closed", "failures": 0, "open_count": 0}
        (engine,) = shown["engines"]
        assert engine["kv_capacity_tokens"] == 1600
        assert engine["own_load"] == {"running": 0, "prefill_tokens": 0, "kv_tokens": 0}
        assert engine["external_load"]["running"] == 2
        assert engine["cost_model"]["prefill_tokens_per_s"] > 0
        assert fleet["models"]["tiny"]["pods"] == [pod.url]


async def test_a_pod_is_drained_and_undrained(pod: FakePod) -> None:
    """The answer says where it stands and what still runs there."""
    async with admin_client(pod.url) as client:
        drained = await client.post("/pods/drain", json={"pod": pod.url + "/"})
        assert await drained.json() == {"pod": pod.url, "state": "draining", "running": 0}
        undrained = await client.post("/pods/undrain", json={"pod": pod.url})
        assert (await undrained.json())["state"] == "ready"


async def test_a_drained_pod_runs_until_its_kv_is_fetched(pod: FakePod) -> None:
    """An answer that is not streamed shows no first token: until it has ended, its prefill pod must not be ended."""
    router = Router(routings()["warm"])
    router.pairing.transfers.begin_unseen(pod.url)
    async with admin_client(pod.url, router=router) as client:
        drained = await client.post("/pods/drain", json={"pod": pod.url})
        assert (await drained.json())["running"] == 1
        router.pairing.transfers.end_unseen(pod.url)
        assert (await (await client.post("/pods/drain", json={"pod": pod.url})).json())["running"] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"pod": 5}', 400),
        (b'{"pod": "a"}', 400),
        (b'{"pod": "http://a:1", "force": true}', 400),
        (b"\xff", 400),
        (b'{"pod": "http://unknown:1"}', 404),
    ],
)
async def test_a_bad_drain_is_rejected(body: bytes, status: int) -> None:
    """Naming what was wanted."""
    async with admin_client() as client:
        answer = await client.post("/pods/drain", data=body)
        assert answer.status == status
        assert (await answer.json())["error"]


async def test_reload_reports_what_became_of_it() -> None:
    """A refused reload is no success."""
    async with admin_client() as client:
        assert (await client.post("/reload")).status == 200
    async with admin_client(reported={"reloaded": False, "errors": ["listen: bad"]}) as client:
        answer = await client.post("/reload")
        assert (answer.status, (await answer.json())["errors"]) == (422, ["listen: bad"])


async def test_settings_are_shown() -> None:
    """As they are given to us: hiding secrets is their own affair."""
    async with admin_client() as client:
        assert await (await client.get("/config")).json() == {"listen": "x"}


@pytest.mark.parametrize(
    "authorization", [None, "", "t0ken", "Bearer", "Bearer t0ke", "Bearer t0kenn", "Basic t0ken", "Bearer \xff"]
)
async def test_without_the_token_nothing_is_shown(authorization: str | None) -> None:
    """No path answers, not even that it does not exist."""
    headers = {} if authorization is None else {"authorization": authorization}
    async with admin_client(token="t0ken") as client:
        for path in ("/fleet", "/receipts/r-1", "/nothing"):
            answer = await client.get(path, headers=headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_with_the_token_everything_is() -> None:
    """From wherever one asks, also as a web page's host."""
    async with admin_client(token="t0ken") as client:
        headers = {"authorization": "bearer t0ken", "host": "hearth.example"}
        assert (await client.get("/receipts/r-1", headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"host": "evil.example"}, {"host": "10.0.0.1:9091"}]
)
async def test_without_a_token_web_pages_are_kept_out(headers: dict[str, str]) -> None:
    """A page in a browser on this machine could post to loopback, or rebind its own name to it."""
    async with admin_client() as client:
        assert (await client.post("/reload", headers=headers)).status == 403
        assert (await client.post("/reload", headers={"host": "localhost:9091"})).status == 200


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("host", ["a:b:c", "[::1", "a b", "127.0.0.1:x", "127.0.0.1:99999", "é", "@", "/", ","])
async def test_a_host_that_is_no_address_is_no_error_of_ours(host: str, token: str | None) -> None:
    """With a token it does not matter; without one it is no address of this machine."""
    async with admin_client(token=token) as client:
        headers = {"host": host} | ({"authorization": f"Bearer {token}"} if token else {})
        async with client.get("/config", headers=headers) as answer:
            assert answer.status in ({200} if token else {200, 400, 403})
            assert token or host != "a:b:c" or answer.status == 400
