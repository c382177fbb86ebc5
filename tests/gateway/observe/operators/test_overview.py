"""The compact answers that the page reads: rows by columns, and tenants in pieces by cursor."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from gateway.observe.receipts import ReceiptFilter
from routing.rejection import Reason
from tests.page.stage import Stage, rejected


def rows_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]


async def test_a_pod_is_a_row() -> None:
    """With its state, its load, and what its attempts have shown of late."""
    stage = Stage(pods=9, tenants=40)
    part = json.decode(json.encode(await stage.view().pods()))
    rows = {row["url"]: row for row in rows_of(part)}
    assert list(rows) == stage.urls
    assert rows[stage.urls[7]]["state"] == "open_circuit"
    assert rows[stage.urls[0]]["kv_capacity_tokens"] == 480_000
    recent = [dict(zip(part["recent_columns"], row["recent"], strict=True)) for row in rows.values()]
    assert sum(each["attempts"] for each in recent) == sum(bool(each.attempts) for each in receipts_of(stage))


def receipts_of(stage: Stage) -> list[Any]:
    return [*stage.receipts.latest(ReceiptFilter())]


async def test_tenants_come_in_pieces() -> None:
    """Oldest changes first, each once, until there is no more; then only those that change."""
    stage = Stage(pods=2, tenants=25)
    view, seen, cursors = stage.view(), list[str](), [""]
    for _ in range(3):
        part = await view.tenants(cursors, 10)
        seen += [row[0] for row in part["rows"]]
        cursors = ["another.0-77", part["cursor"]]
        assert part["more"] is (len(seen) < 25)
    assert seen == [f"tenant-{number:05d}" for number in range(25)]
    assert (await view.tenants(cursors, 10))["rows"] == []
    stage.end("tenant-00003")
    (row,) = (await view.tenants(cursors, 10))["rows"]
    assert row[0] == "tenant-00003"
    assert dict(zip(part["columns"], row[1], strict=True))["requests"] == 2


@pytest.mark.parametrize("cursor", ["", "x", "-", "other-5", "a-9e9", "a-" + "9" * 40])
async def test_an_unknown_cursor_starts_at_the_beginning(cursor: str) -> None:
    """That of another process, or no cursor at all."""
    stage = Stage(pods=1, tenants=3)
    assert len((await stage.view().tenants([cursor], 10))["rows"]) == 3


async def test_tiers_have_their_rejections_and_peers_their_age() -> None:
    """And the process its name, so that a page can tell it from its successor."""
    stage = Stage(pods=2, tenants=0)
    stage.end("acme", tier="gold", model="m", **rejected(Reason.OVERLOADED))
    shown = stage.view().overview()
    (tier,) = shown["tiers"]
    assert (tier["tier"], tier["model"], tier["recent_rejections"]) == ("gold", "m", {"overloaded": 1})
    assert shown["pods"]["ready"] == 2
    assert len(shown["peers"]["replica_sync"]["peers"]) == 3
    stage.sync = None
    assert stage.view().overview()["peers"]["replica_sync"] is None
