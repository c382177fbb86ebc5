"""`hearth receipts|fleet|drain|reload` talk to the admin port alone, and never show the token."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.cli import main
from gateway.commands.admin import format_receipt, format_receipts, format_table, printable

TOKEN = "s3cret"

RECEIPT: dict[str, Any] = {
    "id": "r-1",
    "at_s": 1795186398.25,
    "tenant": "legal\x1b[31m",
    "model": "tiny",
    "status": 200,
    "reason": None,
    "ttft_s": 0.25,
    "duration_s": 1.25,
    "usage": {"input_tokens": 100, "cached_input_tokens": 96},
    "attempts": [
        {
            "engine": "http://a:1",
            "kind": "first",
            "result": "ok",
            "actual_ttft_s": 0.15,
            "predicted_ttft_s": 0.1,
            "candidates": [
                {"engine": "http://a:1", "total_s": 0.1, "cached_input_tokens": 64, "scores_s": {"a": 0.02, "b": 0.08}}
            ],
        }
    ],
}

LOAD = {"running": 1, "waiting": 2}

FLEET: dict[str, Any] = {
    "pods": [
        {
            "url": "http://a:1",
            "pool": None,
            "state": "ready",
            "models": ["tiny"],
            "last_error": None,
            "breaker": {"state": "closed"},
            "engines": [{"role": "either", "own_load": LOAD, "peer_load": LOAD, "external_load": LOAD}],
        }
    ]
}


class AdminPort:
    """An admin port that says what it is scripted to say, and notes what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.server = TestServer(web.Application(), host="127.0.0.1")
        self.server.app.router.add_route("*", "/{path:.*}", self.answer)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.sent.append((request.method, str(request.rel_url), json.loads(body) if body else None))
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "the admin token is wanted"}, status=401)
        left = self.answers.get(request.path, [(404, {"error": "no such thing"})])
        status, value = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response(value, status=status, headers={"location": "http://127.0.0.1:1/"})

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")


@pytest_asyncio.fixture
async def port() -> AsyncIterator[AdminPort]:
    port = AdminPort()
    await port.server.start_server()
    yield port
    await port.server.close()


async def run(port: AdminPort, *words: str, token: str = TOKEN) -> int:
    return await asyncio.to_thread(main, [*words, "--url", port.url, "--token", token])


async def test_receipts_are_listed_by_filters(port: AdminPort, capsys: pytest.CaptureFixture[str]) -> None:
    """The filters are the admin port's; a name from a client cannot steer the terminal."""
    port.answers["/receipts"] = [(200, {"receipts": [RECEIPT]})]
    assert await run(port, "receipts", "--tenant", "a b", "--reason", "overloaded", "--limit", "5") == 0
    out = capsys.readouterr().out
    assert port.sent == [("GET", "/receipts?tenant=a+b&reason=overloaded&limit=5", None)]
    assert "legal\\x1b[31m" in out
    assert "\x1b" not in out
    assert "2026-11-20T14:53:18Z" in out


async def test_one_receipt_is_a_list_of_facts_and_attempts(port: AdminPort, capsys: pytest.CaptureFixture[str]) -> None:
    """The scorers that weighed most come first; `--json` is what the admin port says."""
    port.answers["/receipts/r/1"] = [(200, RECEIPT)]
    assert await run(port, "receipts", "r/1") == 0
    assert port.sent[0][1] == "/receipts/r%2F1"
    out = capsys.readouterr().out
    assert "b 0.080000, a 0.020000" in out
    assert "attempt 1: http://a:1, first, ok" in out
    assert await run(port, "receipts", "r/1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == RECEIPT


async def test_the_fleet_is_a_table(port: AdminPort, capsys: pytest.CaptureFixture[str]) -> None:
    """Load of all gateways together."""
    port.answers["/fleet"] = [(200, FLEET)]
    assert await run(port, "fleet") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["POD", "POOL", "ROLE", "STATE", "MODELS"]
    assert row.split() == ["http://a:1", "-", "either", "ready", "tiny", "3", "2", "closed", "-"]


async def test_a_drain_waits_until_nothing_runs(
    port: AdminPort, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where the pod is still busy at the end of the wait."""
    monkeypatch.setattr("gateway.commands.admin.POLL_S", 0.001)
    port.answers["/pods/drain"] = [
        (200, {"pod": "http://a:1", "state": "draining", "running": running}) for running in (2, 1, 0)
    ]
    assert await run(port, "drain", "http://a:1", "--wait", "60") == 0
    assert capsys.readouterr().out == "http://a:1: draining, 0 running\n"
    assert port.sent == [("POST", "/pods/drain", {"pod": "http://a:1"})] * 3
    port.answers["/pods/drain"] = [(200, {"pod": "http://a:1", "state": "draining", "running": 2})]
    assert await run(port, "drain", "http://a:1", "--wait", "0") == 1
    port.answers["/pods/undrain"] = [(200, {"pod": "http://a:1", "state": "ready", "running": 2})]
    assert await run(port, "drain", "http://a:1", "--undo", "--wait", "60") == 0


async def test_a_reload_says_what_it_did(port: AdminPort, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults and exit status 1, or what needs a restart."""
    port.answers["/reload"] = [(200, {"reloaded": True, "needs_restart": ["listen", "redis"]})]
    assert await run(port, "reload") == 0
    assert capsys.readouterr().out == "reloaded; a restart is needed for: listen, redis\n"
    port.answers["/reload"] = [(422, {"reloaded": False, "errors": ["policy: is missing"]})]
    assert await run(port, "reload") == 1
    assert capsys.readouterr().out == "not reloaded: policy: is missing\n"


async def test_the_token_is_never_shown(
    port: AdminPort, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Not where it is wrong either; a file or the environment may hold it. Redirects are not followed."""
    assert await run(port, "fleet", token="wrong-token") == 1
    out, err = capsys.readouterr()
    assert "wrong-token" not in out + err
    assert "HEARTH_ADMIN_TOKEN" in err
    port.answers["/fleet"] = [(302, {}), (200, FLEET)]
    monkeypatch.setenv("HEARTH_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("HEARTH_ADMIN_URL", port.url)
    assert await asyncio.to_thread(main, ["fleet"]) == 1
    assert "302" in capsys.readouterr().err
    monkeypatch.delenv("HEARTH_ADMIN_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert await asyncio.to_thread(main, ["fleet", "--token-file", str(tmp_path / "token")]) == 0
    monkeypatch.setenv("HEARTH_ADMIN_TOKEN_FILE", str(tmp_path / "none"))
    assert await asyncio.to_thread(main, ["fleet"]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://a", "127.0.0.1:9091", "http://user@a:1", "http://a/?b"])
def test_what_is_no_admin_port_is_rejected(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent."""
    assert main(["fleet", "--url", url]) == 1
    assert "--url must be the address of an admin port" in capsys.readouterr().err


def test_a_port_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to check."""
    assert main(["fleet", "--url", "http://127.0.0.1:1"]) == 1
    assert "is the gateway's admin_listen there?" in capsys.readouterr().err


def test_tables_are_aligned() -> None:
    """Columns as wide as their widest cell; nothing is `-`."""
    assert format_table(("A", "BB"), [("long", None), (1, "x\ny")]) == "A     BB\nlong  -\n1     x\\ny\n"
    assert printable("é\t") == "é\\t"
    assert format_receipts({"receipts": []}).startswith("ENDED")
    assert format_receipt({"id": "r", "error": "", "attempts": []}) == "id                   r\n"
