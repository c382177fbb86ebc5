"""The ladders of all workers on the one admin port of a supervisor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from gateway.cluster.admin import SupervisorAdmin, merge_drained, merge_fleets, merge_receipts
from gateway.cluster.child import ChildResponse


class Parts:
    """Two workers, each with its own part of the page's data."""

    async def request(self, path: str, **_: Any) -> dict[str, ChildResponse]:
        assert path == "/admin/tenants?since=a-1,b-2"
        return {
            name: ChildResponse(200, msgspec.json.encode({"parts": [{"epoch": epoch}]}))
            for name, epoch in (("worker-1", "a"), ("worker-2", "b"))
        }


async def test_each_worker_has_its_part_of_the_page() -> None:
    """With its name; each finds its own cursor among all of them."""

    async def reload() -> dict[str, object]:
        return {}

    workers: Any = Parts()
    app = SupervisorAdmin(workers, reload).app(None)
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        async with client.get("/tenants?since=a-1,b-2") as answer:
            parts = (await answer.json())["parts"]
        async with client.get("/ui") as answer:
            assert answer.content_type == "text/html"
    assert parts == [{"epoch": "a", "worker": "worker-1"}, {"epoch": "b", "worker": "worker-2"}]


class Pages:
    """A worker that answers with its page: the path of the request was another one."""

    async def request(self, path: str, **_: Any) -> dict[str, ChildResponse]:
        return {"worker-1": ChildResponse(200, f"<html>{path}</html>".encode())}


@pytest.mark.parametrize("path", ["/receipts/..", "/receipts/%2e%2e", "/receipts/."])
async def test_an_id_of_dots_leads_to_no_other_path_of_a_worker(path: str) -> None:
    """It is no receipt's id."""

    async def reload() -> dict[str, object]:
        return {}

    workers: Any = Pages()
    app = SupervisorAdmin(workers, reload).app(None)
    async with (
        TestClient(TestServer(app, host="127.0.0.1")) as client,
        client.session.get(URL(f"http://127.0.0.1:{client.port}{path}", encoded=True)) as answer,
    ):
        assert answer.status == 404


class Workers:
    """Two workers, of which the second has a frozen rung."""

    async def request(self, path: str, **_: Any) -> dict[str, ChildResponse]:
        assert path == "/admin/cascades"
        frozen: dict[str, list[str]] = {"1": [], "2": ["small"]}
        shown = {name: [{"cascade": "auto", "guarantee": {"frozen_models": rungs}}] for name, rungs in frozen.items()}
        return {
            name: ChildResponse(200, msgspec.json.encode({"cascades": cascades})) for name, cascades in shown.items()
        }


async def test_the_cascades_of_all_workers_are_shown() -> None:
    """One entry for each worker: each knows the answers that it has judged itself."""

    async def reload() -> dict[str, object]:
        return {}

    workers: Any = Workers()
    app = SupervisorAdmin(workers, reload).app(None)
    async with TestClient(TestServer(app, host="127.0.0.1")) as client, client.get("/cascades") as answer:
        cascades = (await answer.json())["cascades"]
    assert [(each["worker"], each["guarantee"]["frozen_models"]) for each in cascades] == [("1", []), ("2", ["small"])]


def a_fleet(state: str, running: int, *, opened: int = 0, engine: str = "http://a:1", **more: Any) -> dict[str, Any]:
    pod = {
        "url": "http://a:1",
        "state": state,
        "breaker": {"state": "closed", "failures": 0, "open_count": opened},
        "engines": [
            {
                "name": engine,
                "kv_capacity_tokens": 1600,
                "peer_load": {"running": 5, "prefill_tokens": 5, "kv_tokens": 250},
                "own_load": {"running": running, "prefill_tokens": 10 * running, "kv_tokens": 100 * running},
            }
        ],
    }
    return {"pods": [pod], "models": {"tiny": {"pods": ["http://a:1"]}}, **more}


def test_receipts_are_listed_by_time() -> None:
    """The latest of all first, no more than were asked for, each with its worker."""
    lists = {"worker-1": [{"id": "c", "at_s": 3.0}, {"id": "a", "at_s": 1.0}], "worker-2": [{"id": "b", "at_s": 2.0}]}
    assert [(held["id"], held["worker"]) for held in merge_receipts(lists, 2)] == [("c", "worker-1"), ("b", "worker-2")]
    assert merge_receipts(lists, 0) == []


def test_load_is_summed_and_facts_are_reported_once() -> None:
    """What each worker has on an engine adds up; how much an engine holds does not."""
    complete = merge_fleets({"worker-1": a_fleet("ready", 1, opened=1), "worker-2": a_fleet("ready", 2, opened=2)})
    (pod,) = complete["pods"]
    (engine,) = pod["engines"]
    assert engine["own_load"] == {"running": 3, "prefill_tokens": 30, "kv_tokens": 300}
    assert engine["peer_load"] == {"running": 3, "prefill_tokens": 0, "kv_tokens": 50}, "siblings are no others"
    assert (engine["kv_capacity_tokens"], pod["breaker"]["open_count"]) == (1600, 3)
    assert "states" not in pod
    assert list(complete["models"]) == ["tiny"]


def test_workers_may_see_a_pod_differently() -> None:
    """Each has its own breakers: then each one's view is shown; engines that only one knows are shown too."""
    complete = merge_fleets(
        {"worker-1": a_fleet("ready", 1), "worker-2": a_fleet("open_circuit", 2, engine="http://a:1#1")}
    )
    (pod,) = complete["pods"]
    assert (pod["state"], pod["states"]) == ("ready", {"worker-1": "ready", "worker-2": "open_circuit"})
    assert [engine["name"] for engine in pod["engines"]] == ["http://a:1", "http://a:1#1"]


def test_a_pod_that_only_one_worker_knows_is_shown() -> None:
    """Discovery may be a moment ahead in one of them; and without workers there is no fleet."""
    assert merge_fleets({"worker-1": {"pods": [], "models": {}}, "worker-2": a_fleet("ready", 1)})["pods"]
    assert merge_fleets({}) == {"pods": [], "models": {}}


def test_a_drained_pod_runs_what_all_have_there() -> None:
    """The sum is what an operator waits for."""
    answers = [{"pod": "http://a:1", "state": "draining", "running": running} for running in (1, 2)]
    assert merge_drained(answers) == {"pod": "http://a:1", "state": "draining", "running": 3}
