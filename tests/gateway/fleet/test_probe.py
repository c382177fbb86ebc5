"""A probe turns whatever a pod answers, or does not, into a value."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.fleet.probe import Prober, ProbeResult, probe_session
from routing.pods import ModelCard
from tests.gateway.fake_pod import FakePod, fake_pods, metrics_page


@pytest.fixture
async def pod() -> AsyncIterator[FakePod]:
    pod = FakePod()
    async with fake_pods(pod):
        yield pod


@pytest.fixture
async def prober() -> AsyncIterator[Prober]:
    async with probe_session() as session:
        yield Prober(session, lambda _: "sk-pods", timeout_s=60.0)


@pytest.fixture
async def impatient() -> AsyncIterator[Prober]:
    """For pods that do not answer at all."""
    async with probe_session() as session:
        yield Prober(session, lambda _: "sk-pods", timeout_s=0.2)


async def test_health_has_four_answers(pod: FakePod, prober: Prober, impatient: Prober) -> None:
    """Well, not ready, silent, gone."""
    assert await prober.health(pod.url) is ProbeResult.HEALTHY
    pod.health = 503
    assert await prober.health(pod.url) is ProbeResult.NOT_READY
    pod.hangs = True
    assert await impatient.health(pod.url) is ProbeResult.NO_RESPONSE
    await pod.stop()
    assert await prober.health(pod.url) is ProbeResult.UNREACHABLE


async def test_a_pod_that_only_serves_on_is_gone(pod: FakePod, prober: Prober) -> None:
    """Told to stop, a server may go on with the connections that it has: a probe must not be fooled by one of them."""
    assert await prober.health(pod.url) is ProbeResult.HEALTHY
    pod.stop_listening()
    assert await prober.health(pod.url) is ProbeResult.UNREACHABLE


async def test_a_pod_that_breaks_off_is_silent(prober: Prober) -> None:
    """Something listens there, but what it says is no answer."""

    async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    async with server:
        assert await prober.health(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") is ProbeResult.NO_RESPONSE


async def test_models_are_listed_with_our_key(pod: FakePod, prober: Prober) -> None:
    """Adapters name their parent; fields we do not know are skipped."""
    pod.models.append({"id": "ad", "parent": "tiny", "root": "/x", "max_model_len": None, "permission": [{}]})
    listing = await prober.models(pod.url)
    assert listing.cards == (ModelCard("tiny"), ModelCard("ad", "/x", "tiny"))
    assert pod.keys_seen == {"Bearer sk-pods"}


@pytest.mark.parametrize("length", [0, -1, 1 << 31, 10**400])
async def test_a_context_that_no_model_has_is_not_known(pod: FakePod, prober: Prober, length: int) -> None:
    """Requests to all other pods of the model would be cut to it."""
    pod.models = [{"id": "tiny", "max_model_len": length}, {"id": "x" * 257}, {"id": ""}]
    assert (await prober.models(pod.url)).cards == (ModelCard("tiny"),)


async def test_what_is_no_list_is_reported(pod: FakePod, prober: Prober) -> None:
    """Each case in words for an operator."""
    pod.models_status = 401
    assert (await prober.models(pod.url)).problem == "refuses our key (pod_api_key)"
    pod.models_status = 500
    assert (await prober.models(pod.url)).problem == "does not list its models (500)"
    pod.models_status, pod.models = 200, [{"name": "tiny"}]
    assert "in a way we do not know" in (await prober.models(pod.url)).problem
    await pod.stop()
    assert (await prober.models(pod.url)).problem == "does not list its models (no answer)"


async def test_metrics_may_be_missing(pod: FakePod, prober: Prober) -> None:
    """None where there is no page."""
    assert await prober.metrics(pod.url) is None
    pod.page = metrics_page(running=3)
    page = await prober.metrics(pod.url)
    assert page is not None
    assert page.engines[0].running == 3
    await pod.stop()
    assert await prober.metrics(pod.url) is None


async def test_an_engine_shows_that_it_works_by_a_token(pod: FakePod, prober: Prober, impatient: Prober) -> None:
    """Whoever makes none of this kind says so, and is no worse for it; a server without its engine says nothing."""
    assert await prober.generates_token(pod.url, "tiny", rank=1)
    assert pod.keys_seen == {"Bearer sk-pods"}
    pod.tokens_status = 404
    assert await prober.generates_token(pod.url, "tiny", None)
    pod.tokens_status = 500
    assert not await prober.generates_token(pod.url, "tiny", None)
    pod.is_silent = True
    assert not await impatient.generates_token(pod.url, "tiny", None)
    await pod.stop()
    assert not await prober.generates_token(pod.url, "tiny", None)
