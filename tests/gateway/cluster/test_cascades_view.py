"""The cascades of all workers on the one admin port of a supervisor."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from aiohttp.test_utils import TestClient, TestServer

from gateway.cluster.admin import TeamAdmin
from gateway.cluster.child import Answer
from gateway.cluster.processes import Team


class Workers:
    """Two workers, of which the second has a frozen model."""

    async def ask(self, path: str, **_: Any) -> dict[str, Answer]:
        assert path == "/admin/ladders"
        frozen: dict[str, list[str]] = {"1": [], "2": ["small"]}
        shown = {name: [{"ladder": "auto", "standing": {"frozen": rungs}}] for name, rungs in frozen.items()}
        return {name: Answer(200, msgspec.json.encode({"ladders": ladders})) for name, ladders in shown.items()}


async def test_the_cascades_of_all_workers_are_shown() -> None:
    """One entry for each worker: each knows the answers that it has judged itself."""

    async def reload() -> dict[str, object]:
        return {}

    app = TeamAdmin(cast("Team", Workers()), reload).app(None)
    async with TestClient(TestServer(app, host="127.0.0.1")) as client, client.get("/ladders") as answer:
        ladders = (await answer.json())["ladders"]
    assert [(each["worker"], each["standing"]["frozen"]) for each in ladders] == [("1", []), ("2", ["small"])]
