"""The operators' page as it is served: without the token, with a policy that allows its own text only."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.observe.page import SECURITY_HEADERS, page_policy
from tests.gateway.observe.test_admin import admin_client
from tests.page.stage import Stage


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_the_page_is_served_without_the_token(path: str) -> None:
    """It holds no data; what it requests needs the token."""
    async with admin_client(token="t0ken") as client:
        answer = await client.get(path)
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert "<!doctype html>" in await answer.text()
        for data in ("/overview", "/pods", "/tenants"):
            assert (await client.get(data)).status == 401
        assert (await client.post(path)).status == 401


async def test_the_policy_allows_the_text_of_the_page_only() -> None:
    """One script and one style, by hash; no other origin, no markup from text, no frame."""
    async with admin_client() as client:
        answer = await client.get("/")
        page, policy = await answer.text(), answer.headers["content-security-policy"]
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert f"{kind}-src 'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    for rule in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert re.findall(r"""(?:src|href|action)=["'](?!#|data:)""", page) == []
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3\.org)", page)
        == []
    )


async def test_all_that_the_page_asks_is_answered() -> None:
    """By the stage that the browser's tests use, whose stand-ins would otherwise age without a test that falls."""
    stage = Stage(pods=12, tenants=3)
    stage.end_in_cascade("tenant-00001")
    async with TestClient(TestServer(stage.app())) as client:
        page = await (await client.get("/")).text()
        paths = sorted(set(re.findall(r"""ask\(["`]([a-z]+)["`?]""", page)))
        assert {"cascades", "fleet", "overview", "pods", "receipts", "tenants"} <= {*paths}
        answers = {name: await client.get(f"/{name}") for name in paths}
        assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(paths, 200)
        (part,) = (await answers["overview"].json())["parts"]
        assert part["advice"]["spill"]["models"]


def test_a_changed_script_has_another_policy() -> None:
    """So that a text that was added to the page does not run."""
    assert page_policy("<script>a</script>") != page_policy("<script>b</script>")


async def test_every_response_has_the_security_headers() -> None:
    """Errors too."""
    async with admin_client(token="t0ken") as client:
        for path in ("/", "/fleet", "/nothing"):
            answer = await client.get(path)
            assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
            assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("token", [None, "t0ken"])
@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, False),
        ({"origin": "http://127.0.0.1:1"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "OWN"}, True),
    ],
)
async def test_pages_of_other_origins_are_rejected(
    headers: dict[str, str], is_allowed: bool, token: str | None
) -> None:
    """With and without a token: a request that changes something must come from this page or from no page."""
    async with admin_client(token=token) as client:
        own = f"http://127.0.0.1:{client.port}"
        given = {name: own if value == "OWN" else value for name, value in headers.items()}
        given |= {"authorization": f"Bearer {token}"} if token else {}
        assert (await client.post("/reload", headers=given)).status == (200 if is_allowed else 403)


async def test_a_link_elsewhere_leads_to_the_page() -> None:
    """But not to its data."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with admin_client() as client:
        assert (await client.get("/ui", headers=link)).status == 200
        assert (await client.get("/receipts", headers=link)).status == 403


async def test_behind_a_proxy_the_origin_is_that_of_the_proxy() -> None:
    """It names the host that the browser addressed."""
    async with admin_client(token="t0ken") as client:
        headers = {"authorization": "Bearer t0ken", "origin": "https://ops.example", "x-forwarded-host": "ops.example"}
        assert (await client.post("/reload", headers=headers)).status == 200
