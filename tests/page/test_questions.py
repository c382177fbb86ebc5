"""Five questions, each with its cause injected into running pods, answered by the page and by Prometheus alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from simulator.profile import Profile
from tests.deploy.prometheus import Prometheus, prometheus
from tests.deploy.scene import Scene, scene
from tests.gateway.samples import an_attempt
from tests.page.browser import Browser
from tests.page.stage import Stage, served

PROFILE = Profile(prefill_tokens_per_s=20_000.0, max_num_seqs=32)


@asynccontextmanager
async def watched(folder: Path, profile: Profile = PROFILE, **options: Any) -> AsyncIterator[tuple[Scene, Prometheus]]:
    """A gateway with pods, scraped by a real Prometheus."""
    async with (
        scene(folder / "scene", profile, **options) as opened,
        prometheus(folder / "prometheus", [opened.metrics_url.removeprefix("http://")]) as queries,
    ):
        yield opened, queries


async def page_of(browser: Browser, opened: Scene, view: str, until: str) -> str:
    """Return what a view of the page says, once an expression is true there."""
    await browser.open(f"{opened.admin_url}/#{view}")
    await browser.until(until)
    return await browser.text()


def by(answer: dict[tuple[tuple[str, str], ...], float], *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(dict(key)[label] for label in labels): value for key, value in answer.items()}


async def test_why_is_ttft_bad(browser: Browser, tmp_path: Path) -> None:
    """An engine computes prompts eight times slower than its kind: it is late against its predictions."""
    slow = Profile(prefill_tokens_per_s=1_500.0)
    async with watched(tmp_path, slow, pods=1) as (opened, queries):
        await asyncio.gather(
            *(opened.ask("globex", words=900, prefix=f"{number} of its own", max_tokens=4) for number in range(8))
        )
        text = await page_of(browser, opened, "overview", "document.querySelector('.stack')")
        ttft = "sum by (tier) (hearth_time_to_first_token_seconds_sum)"
        queued = await queries.until(f"sum by (tier) (hearth_queue_wait_seconds_sum) / ({ttft} > 0)")
        late = await queries.until(
            "sum(hearth_ttft_prediction_error_seconds_sum) / (sum(hearth_upstream_time_to_first_token_seconds_sum) > 0)"
        )
    assert by(queued, "tier")["bronze",] < 0.3
    assert late[()] > 0.5
    assert re.search(r"\d+ % later than predicted", text)


@pytest.mark.parametrize(
    ("seconds", "cause"),
    [
        ({"queue_wait_s": 3.0, "ttft_s": 3.4, "actual_ttft_s": 0.4, "predicted_ttft_s": 0.4}, "gateway queue"),
        ({"queue_wait_s": 0.0, "ttft_s": 3.4, "actual_ttft_s": 3.4, "predicted_ttft_s": 0.4}, "later than predicted"),
        ({"queue_wait_s": 0.0, "ttft_s": 3.4, "actual_ttft_s": 0.4, "predicted_ttft_s": 0.4}, "failed attempts"),
        ({"queue_wait_s": 0.0, "ttft_s": 3.4, "actual_ttft_s": 3.4, "predicted_ttft_s": 3.4}, "prefill, as predicted"),
    ],
)
async def test_each_cause_of_ttft_is_distinguished(browser: Browser, seconds: dict[str, float], cause: str) -> None:
    """By where most of it goes, in the list of tiers."""
    stage = Stage(pods=1, tenants=0)
    attempt = an_attempt(
        engine=stage.urls[0], **{name: seconds[name] for name in ("actual_ttft_s", "predicted_ttft_s")}
    )
    for _ in range(20):
        waits = {name: seconds[name] for name in ("queue_wait_s", "ttft_s")}
        stage.end("acme", tier="gold", model="m", slo_met=False, attempts=(attempt,), status=200, **waits)
    async with served(stage.app()) as url:
        await browser.open(f"{url}/#overview")
        await browser.until("document.querySelector('.attention')")
        assert re.search(rf"\d+ % {cause}", await browser.text())


async def test_who_is_rejected_and_why(browser: Browser, tmp_path: Path) -> None:
    """One tenant has used up its requests a minute."""
    async with watched(tmp_path, tenants={"initech": {"rpm": 3}}) as (opened, queries):
        statuses = [await opened.ask("initech", words=10) for _ in range(8)]
        await opened.ask("acme", words=10)
        text = await page_of(browser, opened, "tenants", "document.querySelectorAll('tr.row').length === 2")
        found = await queries.until("sum by (tenant, reason) (hearth_tenant_rejections_total) > 0")
    rejected = statuses.count(429)
    assert rejected >= 4
    assert by(found, "tenant", "reason") == {("initech", "rate_limited_requests"): rejected}
    assert f"rate_limited_requests {rejected}" in text


async def test_which_pod_is_sick(browser: Browser, tmp_path: Path) -> None:
    """A pod is killed: it is first on the page with the reason, and the only one that is not ready."""
    async with watched(tmp_path, pods=3) as (opened, queries):
        await asyncio.gather(*(opened.ask("acme", words=10, prefix=str(number)) for number in range(6)))
        sick = opened.pods[1]
        opened.children[1].program.kill()
        found = await queries.until(
            'max by (upstream, state) (hearth_upstream_state{state=~"open_circuit|suspect|unready"}) == 1'
        )
        text = await page_of(browser, opened, "pods", "document.querySelector('tr.row .badge[data-level=bad]')")
        first = await browser.run("return document.querySelector('tr.row').innerText")
    assert by(found, "upstream", "state") == {(sick, "open_circuit"): 1}
    assert sick in first
    assert "Its breaker is open" in first
    assert text.count("open circuit") == 1


async def test_what_does_each_tenant_spend(browser: Browser, tmp_path: Path) -> None:
    """By the prices of `model_list`, from the tokens of every request, to the same amount in three places."""
    async with watched(tmp_path) as (opened, queries):
        for number in range(6):
            await opened.ask("acme", words=200, prefix=f"acme {number}", max_tokens=20)
        await opened.ask("globex", words=50, prefix="globex", max_tokens=5)
        receipts = (await opened.admin("receipts?limit=100"))["receipts"]
        await page_of(browser, opened, "tenants", "document.querySelectorAll('tr.row').length === 2")
        shown = await browser.run(
            "return Object.fromEntries([...document.querySelectorAll('tr.row')].map((row) =>"
            "[row.cells[0].innerText, row.cells[9].innerText]))"
        )
        found = await queries.until("sum by (tenant) (hearth_cost_total) > 0")
        rows = (await opened.admin("tenants"))["parts"][0]
    expected: dict[str, float] = {}
    for receipt in receipts:
        usage = receipt["usage"]
        cached = usage["cached_input_tokens"] or 0
        cost = (usage["input_tokens"] - cached) * 4e-7 + cached * 4e-8 + usage["output_tokens"] * 1.6e-6
        expected[receipt["tenant"]] = expected.get(receipt["tenant"], 0.0) + cost
    at = rows["columns"].index("cost")
    assert {row[0]: row[1][at] for row in rows["rows"]} == pytest.approx(expected, abs=1e-6)
    assert {tenant: value for (tenant,), value in by(found, "tenant").items()} == pytest.approx(expected, rel=1e-6)
    assert {tenant: float(text) for tenant, text in shown.items()} == pytest.approx(expected, rel=0.1)


async def test_what_is_each_tenants_hit_rate(browser: Browser, tmp_path: Path) -> None:
    """One tenant repeats its prompt, another never does."""
    async with watched(tmp_path) as (opened, queries):
        for number in range(8):
            await opened.ask("acme", words=800, prefix="the same beginning", max_tokens=2)
            await opened.ask("globex", words=800, prefix=f"{number} another one each time", max_tokens=2)
        await page_of(browser, opened, "tenants", "document.querySelectorAll('tr.row').length === 2")
        shown = await browser.run(
            "return Object.fromEntries([...document.querySelectorAll('tr.row')].map((row) =>"
            "[row.cells[0].innerText, parseFloat(row.cells[6].innerText)]))"
        )
        found = by(
            await queries.until(
                "sum by (tenant) (hearth_tenant_cached_input_tokens_total)"
                " / sum by (tenant) (hearth_tenant_input_tokens_total)"
            ),
            "tenant",
        )
    assert found["acme",] > 0.7
    assert found["globex",] < 0.1
    assert {tenant: value / 100 for tenant, value in shown.items()} == pytest.approx(
        {tenant: value for (tenant,), value in found.items()}, abs=0.011
    )
