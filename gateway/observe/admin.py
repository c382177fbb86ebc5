"""The admin port: the operators' page, receipts, fleet, drain, reload, settings. Without a token for loopback only."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.cascades.cascades import Cascades, show_cascades
from gateway.config.fields import Secret, parse_pod_base_url
from gateway.diagnosis.doctor import Doctor
from gateway.diagnosis.view import show_bundle, show_findings
from gateway.fleet.view import show_fleet
from gateway.fleet.watcher import FleetWatcher
from gateway.limits.accounts import QuotaEnforcer
from gateway.limits.monitoring import show_accounts
from gateway.observe.page import is_page, page_routes, same_origin_middleware, security_headers_middleware
from gateway.observe.receipts import ReceiptFilter, ReceiptStore
from gateway.replica_sync.peer_load import LoadBySlot, own_load
from gateway.runtime.addresses import Address
from gateway.runtime.ports import body_timeout_middleware, compact_json, json_response
from routing.decision.router import Router
from tenancy.document import InvalidValue

MAX_RECEIPTS_SHOWN = 1000

MAX_TENANT_ROWS = 1_000
"""Per answer."""

RECEIPT_FILTERS = frozenset(
    ("id", "model", "tenant", "session", "pod", "status", "reason", "since", "until", "limit", "brief")
)
"""Query parameters of `/receipts`."""


class PageData(Protocol):
    """What the operators' page shows of this process, as JSON values."""

    def overview(self) -> dict[str, Any]:
        """Return the process, its sources, tiers and peers."""
        ...

    async def pods(self) -> dict[str, Any]:
        """Return a row per pod."""
        ...

    async def tenants(self, cursors: list[str], max_rows: int) -> dict[str, Any]:
        """Return the tenants that have changed since the cursor of this process."""
        ...


class ProviderSwitch(Protocol):
    """Endpoints outside the fleet, as the admin port shows and stops them."""

    def show(self) -> dict[str, Any]:
        """Return their state as JSON values, without keys."""
        ...

    def stop(self, *, stopped: bool) -> None:
        """Stop sending anything to any of them, or undo that."""
        ...


@dataclass(frozen=True, slots=True)
class AdminBackend:
    """What the admin port shows and triggers."""

    receipts: ReceiptStore
    router: Router
    watcher: FleetWatcher
    settings: Callable[[], dict[str, object]]
    reload: Callable[[], Awaitable[dict[str, object]]]
    clock: Callable[[], float]
    token: Secret | None = None
    peer_load: Callable[[], LoadBySlot] = dict
    """Load of other gateways on our engines."""
    quotas: QuotaEnforcer | None = None
    cascades: Cascades | None = None
    cascade_usage: Callable[[str], dict[str, Any]] | None = None
    """Returns what a cascade has done since the start."""
    view: PageData | None = None
    """What the operators' page shows; None where there is none."""
    supply: Callable[[], dict[str, Any]] | None = None
    """Returns the desired engines; None where `supply` is not configured."""
    doctor: Doctor | None = None
    """Diagnosis of the fleet; None where it is off, or in another worker."""
    providers: ProviderSwitch | None = None
    """Endpoints outside the fleet; None where none is configured."""
    canary: Callable[[], dict[str, Any]] | None = None
    """Returns the canary and its verdict; None where none is configured."""


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    pod: str


class _BaselineOrder(msgspec.Struct, forbid_unknown_fields=True):
    reset: bool = False


def admin_app(admin: AdminBackend) -> web.Application:
    """Return the application of the admin port."""
    app = web.Application(middlewares=admin_middlewares(admin.token))
    app.add_routes(
        [
            *page_routes(),
            web.get("/overview", _bound(admin, _overview)),
            web.get("/pods", _bound(admin, _pods)),
            web.get("/tenants", _bound(admin, _tenants)),
            web.get("/receipts", _bound(admin, _receipts)),
            web.get("/receipts/{id}", _bound(admin, _receipt)),
            web.get("/fleet", _bound(admin, _fleet)),
            web.post("/pods/drain", _bound(admin, _drain)),
            web.post("/pods/undrain", _bound(admin, _undrain)),
            web.post("/reload", _bound(admin, _reload)),
            web.get("/config", _bound(admin, _config)),
            web.get("/limits", _bound(admin, _limits)),
            web.get("/cascades", _bound(admin, _cascades)),
            web.get("/scale", _bound(admin, _scale)),
            web.get("/providers", _bound(admin, _providers)),
            web.post("/providers/stop", _bound(admin, _stop_providers)),
            web.post("/providers/start", _bound(admin, _start_providers)),
            web.get("/findings", _bound(admin, _findings)),
            web.get("/findings/bundle", _bound(admin, _bundle)),
            web.post("/baseline/save", _bound(admin, _save_baseline)),
        ]
    )
    return app


def admin_middlewares(token: Secret | None) -> list[Middleware]:
    """Return the middlewares of every admin application: headers, JSON errors, authorization, bounded bodies."""
    return [
        security_headers_middleware,
        _errors_as_json,
        same_origin_middleware,
        _guard(token) if token else _only_loopback,
        body_timeout_middleware,
    ]


AdminHandler = Callable[[AdminBackend, web.Request], Awaitable[web.Response]]


def _bound(admin: AdminBackend, answer: AdminHandler) -> Handler:
    @wraps(answer)
    async def bound(request: web.Request) -> web.StreamResponse:
        return await answer(admin, request)

    return bound


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {
            name: value for name, value in error.headers.items() if name.lower() in ("allow", "www-authenticate")
        }
        answer = json_response({"error": error.text or error.reason}, error.status)
        answer.headers.update(headers)
        return answer


@web.middleware
async def _only_loopback(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Allow only requests to a loopback address: a web page could let its own name resolve to it."""
    try:
        host = request.url.host or ""
    except ValueError:
        raise web.HTTPBadRequest(text="the Host header is not an address") from None
    if not Address(host, 0).is_loopback:
        raise web.HTTPForbidden(text="without admin_token only for requests to the loopback address")
    return await handler(request)


def _guard(token: Secret) -> Middleware:
    wanted = token.value.encode()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_page(request):
            return await handler(request)
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(shown.strip().encode("utf-8", "surrogateescape"), wanted)
        if scheme.lower() != "bearer" or not is_right:
            raise web.HTTPUnauthorized(text="the admin token is wanted", headers={"www-authenticate": "Bearer"})
        return await handler(request)

    return guarded


async def _receipts(admin: AdminBackend, request: web.Request) -> web.Response:
    """Receipts, newest first; filtered by the query."""
    query = request.query
    if unknown := set(query) - RECEIPT_FILTERS:
        raise web.HTTPBadRequest(text=f"unknown filter: {', '.join(sorted(unknown))}")
    wanted = ReceiptFilter(
        id=query.get("id"),
        model=query.get("model"),
        tenant=query.get("tenant"),
        session=query.get("session"),
        pod=query.get("pod"),
        status=_integer(query.get("status"), "status"),
        reason=query.get("reason"),
        since_s=_unix_time(query.get("since"), "since"),
        until_s=_unix_time(query.get("until"), "until"),
    )
    limit = _integer(query.get("limit"), "limit")
    limit = 20 if limit is None else min(limit, MAX_RECEIPTS_SHOWN)
    if query.get("brief") == "1":
        return compact_json({"receipts": [*islice(admin.receipts.latest_brief(wanted), limit)]})
    return json_response({"receipts": [*islice(admin.receipts.latest(wanted), limit)]})


async def _receipt(admin: AdminBackend, request: web.Request) -> web.Response:
    """One receipt."""
    receipt = admin.receipts.find(request.match_info["id"])
    if receipt is None:
        raise web.HTTPNotFound(text=f"no receipt of that id among the last {len(admin.receipts)}")
    return json_response(receipt)


async def _fleet(admin: AdminBackend, request: web.Request) -> web.Response:
    """Pods and engines: state, load, learned speeds, breakers; and the canary with its verdict."""
    watcher, url = admin.watcher, request.query.get("pod")
    pods = [pod for pod in watcher.pods if url in (None, pod.url)]
    shown = show_fleet(admin.router, pods, admin.clock(), admin.peer_load(), watcher.census)
    if admin.doctor is not None:
        found = admin.doctor.findings_by_pod()
        for pod in shown["pods"]:
            pod["findings"] = found.get(pod["url"], [])
    if admin.canary is not None:
        shown["canary"] = admin.canary()
    return json_response(shown)


async def _findings(admin: AdminBackend, _: web.Request) -> web.Response:
    """Findings of the doctor with evidence and a first step, and what could not be checked."""
    return json_response(show_findings(_doctor(admin)))


async def _bundle(admin: AdminBackend, _: web.Request) -> web.Response:
    """A support bundle, without secrets and prompts, that `hearth doctor --bundle` reads."""
    doctor = _doctor(admin)
    body = await asyncio.to_thread(show_bundle, [*doctor.looks], doctor.baselines.baseline, doctor.mode)
    return web.Response(body=body, content_type="application/json")


async def _save_baseline(admin: AdminBackend, request: web.Request) -> web.Response:
    """Write the baseline to the file of `doctor.baseline`; `{"reset": true}` drops what was learned first."""
    try:
        wanted = msgspec.json.decode(await request.read() or b"{}", type=_BaselineOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise web.HTTPBadRequest(text=f'wanted {{"reset": true}} or nothing: {error}') from None
    saved = await _doctor(admin).baselines.save(resets=wanted.reset)
    return json_response(saved, 422 if "error" in saved else 200)


def _doctor(admin: AdminBackend) -> Doctor:
    if admin.doctor is None:
        raise web.HTTPNotFound(text="this process does not diagnose the fleet: doctor.mode is off")
    return admin.doctor


async def _overview(admin: AdminBackend, _: web.Request) -> web.Response:
    """The process, its sources, tiers and peers (data of the page)."""
    return compact_json({"parts": [_view(admin).overview()]})


async def _pods(admin: AdminBackend, _: web.Request) -> web.Response:
    """A row for each pod (data of the page)."""
    return compact_json({"parts": [await _view(admin).pods()]})


async def _tenants(admin: AdminBackend, request: web.Request) -> web.Response:
    """Tenants that have changed since a cursor (data of the page)."""
    if unknown := set(request.query) - {"since", "limit"}:
        raise web.HTTPBadRequest(text=f"unknown filter: {', '.join(sorted(unknown))}")
    limit = _integer(request.query.get("limit"), "limit")
    limit = MAX_TENANT_ROWS if limit is None else min(limit, MAX_TENANT_ROWS)
    return compact_json({"parts": [await _view(admin).tenants(request.query.get("since", "").split(","), limit)]})


def _view(admin: AdminBackend) -> PageData:
    if admin.view is None:
        raise web.HTTPNotFound(text="this gateway keeps no totals")
    return admin.view


async def _drain(admin: AdminBackend, request: web.Request) -> web.Response:
    """Send a pod no new requests; body `{"pod": URL}`."""
    return await _set_drained(admin, request, drained=True)


async def _undrain(admin: AdminBackend, request: web.Request) -> web.Response:
    """Send it requests again."""
    return await _set_drained(admin, request, drained=False)


async def _set_drained(admin: AdminBackend, request: web.Request, *, drained: bool) -> web.Response:
    try:
        url = parse_pod_base_url(msgspec.json.decode(await request.read(), type=_Named).pod)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidValue) as error:
        raise web.HTTPBadRequest(text=f'wanted {{"pod": "http://HOST:PORT"}}: {error}') from None
    if not admin.watcher.drain(url, drained=drained):
        raise web.HTTPNotFound(text=f"no pod {url}")
    known = admin.router.fleet.pod(url)
    theirs, ledger = admin.peer_load(), admin.router.ledger
    running, transfers = 0, admin.router.pairing.transfers
    for engine in known.engines if known else ():
        running += own_load(ledger, engine.slot, theirs).running + transfers.unseen(engine.name)
    return json_response({"pod": url, "state": known.state if known else None, "running": running})


async def _limits(admin: AdminBackend, request: web.Request) -> web.Response:
    """Usage of limits by account."""
    if unknown := set(request.query) - {"tenant", "limit"}:
        raise web.HTTPBadRequest(text=f"unknown filter: {', '.join(sorted(unknown))}")
    max_rows = _integer(request.query.get("limit"), "limit")
    max_rows = 100 if max_rows is None else min(max_rows, MAX_RECEIPTS_SHOWN)
    quotas = admin.quotas
    return json_response({"accounts": show_accounts(quotas, request.query.get("tenant"), max_rows) if quotas else []})


async def _cascades(admin: AdminBackend, _: web.Request) -> web.Response:
    """Guarantees in use."""
    shown, usage_of = show_cascades(admin.cascades) if admin.cascades else [], admin.cascade_usage
    if usage_of is not None:
        shown = [{**each, "usage": usage_of(each["cascade"])} for each in shown]
    return json_response({"cascades": shown})


async def _scale(admin: AdminBackend, _: web.Request) -> web.Response:
    """Desired engines by model, pool and role, and how each figure was made; 404 without `supply`."""
    if admin.supply is None:
        raise web.HTTPNotFound(text="supply is not configured: set `supply: true` in hearth.yaml")
    return json_response(admin.supply())


async def _providers(admin: AdminBackend, _: web.Request) -> web.Response:
    """Endpoints outside the fleet: state, requests, money; 404 without `providers`."""
    return json_response(_provider_switch(admin).show())


async def _stop_providers(admin: AdminBackend, _: web.Request) -> web.Response:
    """Send nothing to any provider from now on, and end what is under way there."""
    return _set_stopped(admin, stopped=True)


async def _start_providers(admin: AdminBackend, _: web.Request) -> web.Response:
    """Let requests be sent to providers again, where the configuration allows it."""
    return _set_stopped(admin, stopped=False)


def _set_stopped(admin: AdminBackend, *, stopped: bool) -> web.Response:
    switch = _provider_switch(admin)
    switch.stop(stopped=stopped)
    return json_response(switch.show())


def _provider_switch(admin: AdminBackend) -> ProviderSwitch:
    if admin.providers is None:
        raise web.HTTPNotFound(text="no provider is configured: see `providers` in hearth.yaml")
    return admin.providers


async def _reload(admin: AdminBackend, _: web.Request) -> web.Response:
    """Reload configuration and policy; 422 with the faults where it fails."""
    reloaded = await admin.reload()
    return json_response(reloaded, 200 if not reloaded.get("errors") else 422)


async def _config(admin: AdminBackend, _: web.Request) -> web.Response:
    """Settings in effect, without secrets."""
    return json_response(admin.settings())


def _integer(words: str | None, name: str) -> int | None:
    if words is None:
        return None
    if not (words.isascii() and words.isdigit()) or len(words) > 9:
        raise web.HTTPBadRequest(text=f"{name} must be a whole number")
    return int(words)


def _unix_time(words: str | None, name: str) -> float | None:
    """Read a time: Unix seconds, or RFC 3339 (without an offset: UTC)."""
    if words is None:
        return None
    try:
        # A plus sign of an offset is a space in a query that was not encoded.
        at = (
            datetime.fromisoformat(words.replace(" ", "+"))
            if "-" in words
            else datetime.fromtimestamp(float(words), UTC)
        )
    except (ValueError, OverflowError, OSError):
        raise web.HTTPBadRequest(text=f"{name} must be Unix seconds or a time like 2026-11-27T08:00:00Z") from None
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()
