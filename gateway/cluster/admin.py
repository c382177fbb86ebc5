"""The admin API of a supervisor: forwards a request to all workers and merges their answers into one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from gateway.cluster.child import ChildResponse
from gateway.cluster.worker_pool import WorkerPool
from gateway.config.fields import Secret
from gateway.config.settings import show_settings
from gateway.limits.monitoring import merge_accounts
from gateway.observe.admin import admin_middlewares
from gateway.observe.page import page_routes
from gateway.runtime.ports import compact_json, json_response

DEFAULT_RECEIPTS = 20

DEFAULT_ACCOUNTS = 100

Reload = Callable[[], Awaitable[dict[str, object]]]


class SupervisorAdmin:
    """The handlers of the admin port."""

    def __init__(self, team: WorkerPool, reload: Reload) -> None:
        self._team = team
        self._reload = reload

    def app(self, token: Secret | None) -> web.Application:
        """The application of the admin port, with the paths of `gateway/observe/admin.py`."""
        app = web.Application(middlewares=admin_middlewares(token))
        app.add_routes(
            [
                *page_routes(),
                *(web.get(path, self._parts) for path in ("/overview", "/pods", "/tenants")),
                web.get("/receipts", self._receipts),
                web.get("/receipts/{id}", self._receipt),
                web.get("/fleet", self._fleet),
                web.post("/pods/drain", self._drain),
                web.post("/pods/undrain", self._drain),
                web.post("/reload", self._take_reload),
                web.get("/config", self._config),
                web.get("/limits", self._limits),
                web.get("/cascades", self._cascades),
                web.get("/scale", self._scale),
                web.get("/providers", self._providers),
                web.post("/providers/stop", self._providers),
                web.post("/providers/start", self._providers),
                web.get("/findings", self._from_one),
                web.get("/findings/bundle", self._from_one),
                web.post("/baseline/save", self._from_one),
            ]
        )
        return app

    async def _receipts(self, request: web.Request) -> web.Response:
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        limit = int(request.query.get("limit", DEFAULT_RECEIPTS))  # the workers have checked it
        lists = {worker: _json(answer)["receipts"] for worker, answer in answers.items()}
        return json_response({"receipts": merge_receipts(lists, limit)})

    async def _parts(self, request: web.Request) -> web.Response:
        """One part by worker: the page adds them up."""
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        parts = [{**part, "worker": worker} for worker in answers for part in _json(answers[worker])["parts"]]
        return compact_json({"parts": parts})

    async def _receipt(self, request: web.Request) -> web.Response:
        if request.match_info["id"] in (".", ".."):  # A path of a worker that is not a receipt's.
            raise web.HTTPNotFound(text="no receipt of that id")
        answers = await self._ask(request)
        for worker, answer in answers.items():
            if answer.status == 200:
                return json_response({**_json(answer), "worker": worker})
        return _rejection(answers) or _no_worker()

    async def _fleet(self, request: web.Request) -> web.Response:
        """Answers even if no worker does: then the list of processes shows which are missing."""
        answers = await self._team.request(f"/admin{request.path_qs}")
        fleets = {name: _json(answer) for name, answer in answers.items() if answer.status == 200}
        children = [
            {"name": slot.name, "pid": slot.child.pid if slot.child else None, "restarts": slot.restarts}
            for slot in self._team.slots
        ]
        return json_response({**merge_fleets(fleets), "processes": children})

    async def _limits(self, request: web.Request) -> web.Response:
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        lists = [_json(answer)["accounts"] for answer in answers.values()]
        return json_response({"accounts": merge_accounts(lists, int(request.query.get("limit", DEFAULT_ACCOUNTS)))})

    async def _cascades(self, request: web.Request) -> web.Response:
        """By worker: each knows only the verdicts and shadow samples of the requests it served."""
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        lists = {worker: _json(answer)["cascades"] for worker, answer in answers.items()}
        return json_response({"cascades": [{**each, "worker": worker} for worker in lists for each in lists[worker]]})

    async def _scale(self, request: web.Request) -> web.Response:
        """Of the worker that decides, where one does: the others answer with its decision."""
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        views = [_json(answer) for answer in answers.values()]
        return json_response(next((view for view in views if view["is_leader"]), views[0]))

    async def _providers(self, request: web.Request) -> web.Response:
        """Of all workers together: requests and money are summed. Workers that start later follow the switch."""
        answers = await self._ask(request)
        if rejection := _rejection(answers):
            return rejection
        if request.method == "POST":
            self._team.providers_stopped = request.path == "/providers/stop"
        return json_response(merge_providers([_json(answer) for answer in answers.values()]))

    async def _from_one(self, request: web.Request) -> web.Response:
        """The answer of the one worker that diagnoses the fleet for all."""
        answers = await self._ask(request)
        found = next((answer for answer in answers.values() if answer.status != 404), None)
        return _forwarded(found) if found is not None else _rejection(answers) or _no_worker()

    async def _drain(self, request: web.Request) -> web.Response:
        answers = await self._ask(request)
        done = [_json(answer) for answer in answers.values() if answer.status == 200]
        for drained in done[:1]:
            self._team.set_drained(drained["pod"], is_drained=request.path == "/pods/drain")
        return json_response(merge_drained(done)) if done else _rejection(answers) or _no_worker()

    async def _take_reload(self, _: web.Request) -> web.Response:
        result = await self._reload()
        return json_response(result, 200 if not result.get("errors") else 422)

    async def _config(self, _: web.Request) -> web.Response:
        return json_response(show_settings(self._team.fresh.settings))

    async def _ask(self, request: web.Request) -> dict[str, ChildResponse]:
        """Forward a request to all workers. Returns the answers by worker; 503 where none answers."""
        body = await request.read() if request.body_exists else None
        answers = await self._team.request(f"/admin{request.path_qs}", method=request.method, body=body)
        if not answers:
            raise web.HTTPServiceUnavailable(text="no worker answers")
        return answers


def _json(answer: ChildResponse) -> Any:
    return msgspec.json.decode(answer.body)


def _forwarded(answer: ChildResponse) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type="application/json")


def _rejection(answers: dict[str, ChildResponse]) -> web.Response | None:
    """The answer of the first worker that rejected the request: all validate alike."""
    return next((_forwarded(answer) for answer in answers.values() if answer.status != 200), None)


def _no_worker() -> web.Response:
    return json_response({"error": "no worker answers"}, 503)


AdminView = dict[str, Any]

OWN_LOAD = ("running", "prefill_tokens", "kv_tokens")
"""Load of a worker's own requests on an engine, summed over workers."""


def merge_receipts(lists: Mapping[str, list[AdminView]], limit: int) -> list[AdminView]:
    """Merge the receipts of workers, latest first, each with the name of its worker."""
    every = [{**receipt, "worker": worker} for worker, held in lists.items() for receipt in held]
    return sorted(every, key=lambda receipt: receipt["at_s"], reverse=True)[:limit]


def merge_fleets(fleets: Mapping[str, AdminView]) -> AdminView:
    """Merge the fleets of workers, by name: the view of the first, with the load of all.

    Where workers differ about a pod, `states` has the view of each: every worker has circuit breakers of its own.
    """
    if not fleets:
        return {"pods": [], "models": {}}
    whole, *others = fleets.values()
    pods = {pod["url"]: pod for pod in whole["pods"]}
    for fleet in others:
        for pod in fleet["pods"]:
            if (known := pods.get(pod["url"])) is None:
                whole["pods"].append(pod)
                pods[pod["url"]] = pod
            else:
                _add_load(known, pod)
                known["breaker"]["open_count"] += pod["breaker"]["open_count"]
    for url, states in _states(fleets).items():
        if len(set(states.values())) > 1:
            pods[url]["states"] = states
    return whole


SUMMED = ("open_requests", "requests", "cost")


def merge_providers(views: list[AdminView]) -> AdminView:
    """Merge the endpoints of all workers: an endpoint is usable where it is for every worker."""
    merged: dict[str, AdminView] = {}
    for view in views:
        for each in view["endpoints"]:
            known = merged.setdefault(each["name"], {**each, **dict.fromkeys(SUMMED, 0)})
            known.update({name: known[name] + each[name] for name in SUMMED})
            if known["state"] == "usable":
                known["state"] = each["state"]
    return {
        "stopped": any(view["stopped"] for view in views),
        "stopped_by_operator": any(view["stopped_by_operator"] for view in views),
        "endpoints": list(merged.values()),
    }


def merge_drained(answers: Iterable[AdminView]) -> AdminView:
    """Merge the answers to a drain: the requests that still run on the pod are summed."""
    first, *others = answers
    return {**first, "running": first["running"] + sum(other["running"] for other in others)}


def _add_load(known: AdminView, pod: AdminView) -> None:
    engines = {engine["name"]: engine for engine in known["engines"]}
    for engine in pod["engines"]:
        if (same := engines.get(engine["name"])) is None:
            known["engines"].append(engine)
            continue
        for field in OWN_LOAD:
            more = engine["own_load"][field]
            same["own_load"][field] += more
            # Load of a sibling is load of this gateway, not of peers.
            same["peer_load"][field] = max(0, same["peer_load"][field] - more)


def _states(fleets: Mapping[str, AdminView]) -> dict[str, dict[str, str]]:
    """State by pod URL and worker."""
    found: dict[str, dict[str, str]] = {}
    for worker, fleet in fleets.items():
        for pod in fleet["pods"]:
            found.setdefault(pod["url"], {})[worker] = pod["state"]
    return found
