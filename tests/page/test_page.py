"""The operators' page in a real browser: what it shows, what it never does, and how fast it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from routing.rejection import Reason
from tests.gateway.samples import an_attempt
from tests.page.browser import Browser
from tests.page.stage import Stage, rejected, served

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".venv-page/package/axe.min.js"
SHOTS = ROOT / "out/page"

VIEWS = ("overview", "pods", "tenants", "requests", "cascades", "peers")

HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "\u202eevil\u2066 tenant",
)

DRAWN = "document.querySelector('#stats .stat') && document.querySelector('[data-state=live]')"


async def show(browser: Browser, view: str) -> None:
    """Go to a view and wait until it shows what has been loaded for it."""
    await browser.run(f"performance.clearMarks(); location.hash = '#{view}'")
    await browser.until("performance.getEntriesByName('hearth-drawn').length")


async def test_a_thousand_pods_and_ten_thousand_tenants_paint_within_a_second(browser: Browser) -> None:
    """First contentful paint, a table drawn with few rows, nothing requested but this origin, an empty console."""
    stage = Stage(pods=1_000, tenants=10_000)
    async with served(stage.app()) as url:
        await browser.open(f"{url}/#pods")
        await browser.until(DRAWN)
        paint_ms = await browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
        await browser.until("document.querySelector('#pods-count').textContent === '1,000 pods'")
        rows = await browser.run("return document.querySelectorAll('tr.row').length")
        await browser.screenshot(SHOTS / "pods.png")
        await show(browser, "tenants")
        await browser.until("document.querySelector('#tenants-count').textContent.startsWith('10,000 tenants')")
        tenant_rows = await browser.run("return document.querySelectorAll('tr.row').length")
        requested = await browser.requested()
        console = await browser.log("browser")
    print(f"first contentful paint: {paint_ms:.0f} ms")
    assert paint_ms < 1_000
    assert 10 < rows < 80
    assert 10 < tenant_rows < 80
    assert [each for each in requested if not each.startswith((url, "data:"))] == []
    assert console == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_accessibility_fault_is_found(browser: Browser, theme: str) -> None:
    """By axe's rules, in each view with and without details, in both themes."""
    stage = Stage(pods=70, tenants=200)
    for number in range(20):
        stage.end_in_cascade(f"tenant-{number:05d}")
    stage.end("one-more", **rejected(Reason.OVERLOADED))
    async with served(stage.app()) as url:
        await browser.command("Page.setBypassCSP", enabled=True)  # of the checker's own script, not of the page's
        await browser.open(url)
        await browser.until(DRAWN)
        if await browser.run("return document.documentElement.dataset.theme") != theme:
            await browser.press("t")
        await browser.run(AXE.read_text(encoding="utf-8") + "; window.axe = axe")
        found: list[Any] = []
        for view in VIEWS:
            await show(browser, view)
            found += [(view, *fault) for fault in await faults(browser)]
            await browser.screenshot(SHOTS / f"{view}-{theme}.png")
            if view in ("pods", "tenants", "requests"):
                await browser.run("document.querySelector('tr.row').click()")
                await browser.until("document.querySelector('#drawer-body .facts')")
                found += [(f"{view} details", *fault) for fault in await faults(browser)]
                await browser.screenshot(SHOTS / f"{view}-details-{theme}.png")
    assert found == []


async def faults(browser: Browser) -> list[Any]:
    """Return the rules that are broken now, with the first element that breaks each."""
    found: list[Any] = await browser.run(
        "return axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map("
        "(each) => [each.id, each.help, each.nodes[0].html.slice(0, 200)]))"
    )
    return found


async def test_names_from_clients_are_text(browser: Browser) -> None:
    """Hostile tenants, models, tiers and pools are shown letter by letter in every view, and run nothing."""
    stage = Stage(pods=8, tenants=3, names=HOSTILE)
    for name in HOSTILE:
        stage.end(name, model=name, tier=name, **rejected(Reason.OVERLOADED) | {"error": name, "session": name})
    async with served(stage.app()) as url:
        await browser.open(url)
        await browser.until(DRAWN)
        shown = ""
        for view in VIEWS:
            await show(browser, view)
            shown += await browser.text()
            for number in range(await browser.run("return Math.min(8, document.querySelectorAll('tr.row').length)")):
                await browser.run(
                    "document.querySelectorAll('.view tr.row[data-at]')[arguments[0]]?.click()",
                    number,
                )
                await asyncio.sleep(0)
                shown += await browser.text()
        hacked = await browser.run(
            "return window.hacked ?? document.querySelectorAll('main img, main svg, main script').length"
        )
        console = await browser.log("browser")
    assert hacked == 0
    assert [name for name in HOSTILE if name.strip("\u202e") not in shown] == []
    assert console == []


async def test_markup_from_text_is_rejected_by_the_browser_itself(browser: Browser) -> None:
    """The policy of the page: a script that a fault had let in could neither write markup nor call another server."""
    async with served(Stage().app()) as url:
        await browser.open(url)
        await browser.until(DRAWN)
        markup = await browser.run(
            "try { document.body.innerHTML = '<b>x</b>'; return 'written' } catch (error) { return error.name }"
        )
        await browser.run(
            "const s = document.createElement('script'); try { s.textContent = 'window.hacked=1' } catch {}"
            "document.body.append(s)"
        )
        away = await browser.run("return fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)")
        assert (markup, away) == ("TypeError", "TypeError")
        assert await browser.run("return window.hacked ?? null") is None
        assert any("Content Security Policy" in each["message"] for each in await browser.log("browser"))


async def test_the_token_is_sent_in_a_header_only(browser: Browser) -> None:
    """Behind a path prefix: a wrong token is rejected, the right one opens the page, and no URL or storage of others
    holds it.
    """
    seen: list[tuple[str, str]] = []
    stage = Stage()
    async with served(stage.app(token="s3cret")) as inner, served(prefix_proxy(inner, seen)) as url:
        await browser.open(f"{url}/ops/hearth/ui#tenants")
        await browser.until("document.querySelector('#login[open]')")
        await browser.screenshot(SHOTS / "login.png")
        await browser.run("document.getElementById('token').focus()")
        await browser.press(*"wrong", "Enter")
        await browser.until("document.querySelector('#login[open] #login-error').textContent.includes('rejected')")
        await browser.run("document.getElementById('token').focus()")
        await browser.press(*"s3cret", "Enter")
        await browser.until(DRAWN)
        await browser.until("document.querySelectorAll('tr.row').length > 5")
        kept = await browser.run("return [{...sessionStorage}, {...localStorage}, document.cookie, location.href]")
        requested = await browser.requested()
        await browser.run("location.hash = '#pods'")
        await browser.until("document.querySelector('#pods-count').textContent === '12 pods'")
        await browser.run("window.confirm = () => true; document.querySelector('tr.row').click()")
        await browser.until("document.querySelector('.button.danger')")
        await browser.run("document.querySelector('.button.danger').click()")
        await browser.until("document.querySelector('#drawer-body').textContent.includes('Undrain')")
    assert kept == [{"hearth-admin-token": "s3cret"}, {}, "", f"{url}/ops/hearth/ui#tenants"]
    assert [
        each for each in requested if "s3cret" in each or not each.startswith((f"{url}/ops/hearth/", "data:"))
    ] == []
    assert [path for path, _ in seen if "s3cret" in path] == []
    assert {authorization for _, authorization in seen} == {"", "Bearer wrong", "Bearer s3cret"}
    assert len(stage.drained) == 1


def prefix_proxy(inner: str, seen: list[tuple[str, str]]) -> web.Application:
    """Return a proxy that serves the admin port below /ops/hearth/, and notes what passes."""

    async def forward(request: web.Request) -> web.Response:
        path = request.path_qs.removeprefix("/ops/hearth")
        seen.append((request.path_qs, request.headers.get("authorization", "")))
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        headers["x-forwarded-host"] = request.headers["host"]
        async with (
            aiohttp.ClientSession() as client,
            client.request(request.method, f"{inner}{path}", headers=headers, data=await request.read()) as answer,
        ):
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server")
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    app = web.Application()
    app.router.add_route("*", "/ops/hearth/{path:.*}", forward)
    return app


async def test_the_keyboard_reaches_everything(browser: Browser) -> None:
    """Views by number, the filter by slash, rows by arrows, details by Enter and Escape."""
    stage = Stage(pods=70, tenants=5)
    async with served(stage.app()) as url:
        await browser.open(url)
        await browser.until(DRAWN)
        await browser.press("2")
        await browser.until("document.querySelector('#pods-count').textContent === '70 pods'")
        await browser.press("/")
        await browser.press(*"state:draining")
        await browser.until("document.querySelectorAll('tr.row').length === 1")
        await browser.press("Escape", "j", "Enter")
        await browser.until("document.querySelector('#drawer-title').textContent === 'http://10.0.55.17:8000'")
        assert await browser.run("return location.hash") == "#pods/http%3A%2F%2F10.0.55.17%3A8000"
        await browser.press("Escape")
        assert await browser.run("return document.getElementById('drawer').hidden")
        await browser.press("/")
        await browser.run(
            "const box = document.querySelector('.search input'); box.value = '';box.dispatchEvent(new Event('input'))"
        )
        await browser.press("Escape")
        await browser.press("j", "End")
        await browser.until("document.activeElement.dataset.at === '69'")
        await browser.press("?")
        await browser.until("document.querySelector('#help[open]')")


async def test_rows_are_sorted_and_filtered(browser: Browser) -> None:
    """By any column, in either direction, and by comparisons."""
    stage = Stage(pods=3, tenants=0)
    for number in range(1, 40):
        for _ in range(number):
            stage.end(f"tenant-{number:02d}", slo_met=True)
    async with served(stage.app()) as url:
        await browser.open(f"{url}/#tenants")
        await browser.until("document.querySelectorAll('tr.row').length > 10")
        names = "return [...document.querySelectorAll('tr.row td.name')].slice(0, 3).map((cell) => cell.textContent)"
        assert await browser.run(names) == ["tenant-39", "tenant-38", "tenant-37"]
        await browser.run("document.querySelector('th button').click()")
        assert await browser.run(names) == ["tenant-01", "tenant-02", "tenant-03"]
        assert await browser.run("return document.querySelector('th').getAttribute('aria-sort')") == "ascending"
        await browser.run(
            "const box = document.querySelector('.search input'); box.value = 'requests>36 tenant-3';"
            "box.dispatchEvent(new Event('input'))"
        )
        assert await browser.run(names) == ["tenant-37", "tenant-38", "tenant-39"]


async def test_polling_pauses_while_hidden_and_backs_off(browser: Browser) -> None:
    """A hidden tab asks for nothing, and a gateway that does not answer is asked more and more rarely."""
    seen: list[tuple[str, str]] = []
    stage = Stage()
    async with served(stage.app()) as inner:
        async with served(prefix_proxy(inner, seen)) as url:
            await browser.open(f"{url}/ops/hearth/#peers")
            await browser.until(DRAWN)
            await browser.until("performance.getEntriesByName('hearth-drawn').length >= 2")
            await browser.run(
                "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )
            await browser.run("return new Promise((resolve) => setTimeout(resolve, 300))")
            before = len(seen)
            await browser.run("return new Promise((resolve) => setTimeout(resolve, 3500))")
            assert len(seen) == before
            await browser.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
            await browser.until("performance.getEntriesByName('hearth-drawn').length >= 3")
            assert len(seen) > before
        await browser.until("document.querySelector('[data-state=failed]')")
        assert "no answer" in await browser.run("return document.getElementById('live').textContent")


async def test_a_receipt_is_a_timeline(browser: Browser) -> None:
    """Queue, attempt and decode with their seconds, each candidate with its seconds by scorer, and no prompt."""
    stage = Stage(pods=9, tenants=0)
    failed = an_attempt(engine=stage.urls[0], result="connection_reset", start_s=0.2, duration_s=0.1, candidates=())
    last = replace(stage.attempt(0.2, 900), start_s=0.3, duration_s=1.7)
    changes: dict[str, Any] = {"queue_wait_s": 0.2, "ttft_s": 0.5, "duration_s": 2.0, "attempts": (failed, last)}
    outcome = stage.end("legal", status=200, **changes)
    async with served(stage.app()) as url:
        await browser.open(f"{url}/#requests/{outcome.id}")
        await browser.until("document.querySelector('.timeline')")
        labels = await browser.run(
            "return [...document.querySelectorAll('.timeline .label')].map((each) => each.textContent)"
        )
        assert labels == [
            *("Request", "Admission queue", f"connection reset on {stage.urls[0]}"),
            *(f"To first token on {last.engine}", "Decode"),
        ]
        bars = await browser.run(
            "return [...document.querySelectorAll('.track > i')].map((bar) => [bar.style.left, bar.style.width])"
        )
        assert bars == [["0%", "100%"], ["0%", "10%"], ["10%", "5%"], ["15%", "10%"], ["25%", "75%"]]
        text = await browser.text()
        assert "8 of 9 candidates, seconds by scorer" in text
        assert "prefill time" in text
        raw = json.loads(await browser.run("return document.querySelector('pre').textContent"))
        assert raw["id"] == outcome.id
        assert "prompt" not in raw
