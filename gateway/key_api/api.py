"""The HTTP interface of the key API. Every answer is JSON; a key is in one answer only, the one that creates it.

A tenant that an actor may not see answers as one that does not exist. A change is written to the audit log before it is
made: where that fails, nothing is changed. A change that was made is answered as made, also where its second line
cannot be written. Denials are written too.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Meta

from gateway.key_api.actors import Actor, IssuerUnavailable, UnknownActor
from gateway.key_api.audit import AuditLog, DenialBudget
from gateway.key_api.key_store import (
    MAX_KEYS_PER_TENANT,
    CreatedKey,
    KeyNotFound,
    KeyStore,
    StoredKey,
    TooManyKeys,
    VersionMismatch,
)
from gateway.key_api.openapi import openapi_document
from gateway.runtime.event_log import LogFunction
from gateway.runtime.ports import body_timeout_middleware
from tenancy.document import InvalidValue
from tenancy.policy import Policy
from tenancy.reading.fields import KEY_LIMITS
from tenancy.tenants import Tenant

MAX_BODY_BYTES = 16 << 10
MAX_KEYS_SHOWN = 1000
MAX_THREADS = 4
MAX_AUDITED_CHARS = 128
MAX_LIFETIME_S = 10 * 365 * 86_400
KEY_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")

Identify = Callable[[web.Request], Actor]
"""Identifies the actor of a request. Raises `UnknownActor` and `IssuerUnavailable`."""

Seconds = Annotated[int, Meta(ge=0, le=MAX_LIFETIME_S)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)


Count = Annotated[int, Meta(ge=1, le=10**12)]
Period = Annotated[str, Meta(pattern="^[1-9][0-9]{0,5}[smhdw]$")]


class KeyLimits(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one key, by the keys of the policy. Each is at most its tenant's."""

    rpm: Count | None = None
    tpm: Count | None = None
    input_tpm: Count | None = None
    output_tpm: Count | None = None
    uncached_tpm: Count | None = None
    max_parallel_requests: Count | None = None
    max_budget: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    budget_duration: Period | None = None

    def file_fields(self, tenant: Tenant) -> dict[str, str]:
        """Return them as a key file has them. Raises `InvalidValue` for one that is above the tenant's."""
        given: dict[str, Any] = {key: value for key, value in msgspec.structs.asdict(self).items() if value is not None}
        if "budget_duration" in given and "max_budget" not in given:
            raise InvalidValue("limits.budget_duration: requires max_budget")
        if "max_budget" in given and tenant.quota.budget is None:
            raise InvalidValue("limits.max_budget: the tenant has no budget, so its models may have no prices")
        for key, value in given.items():
            bound = getattr(tenant.quota, KEY_LIMITS[key].field)
            if isinstance(value, int | float) and bound is not None and value > bound:
                raise InvalidValue(f"limits.{key}: the tenant has {bound:g}")
        return {key: str(value) for key, value in given.items()}


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a creation."""

    id: Word | None = None
    user: Word | None = None
    group: Word | None = None
    expires_in_s: Annotated[int, Meta(ge=1, le=MAX_LIFETIME_S)] | None = None
    limits: KeyLimits | None = None


class KeyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a change: its limits replace those of the key."""

    limits: KeyLimits


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a rotation."""

    grace_period_s: Seconds = 0
    """How long the old key stays valid."""


class HiddenTenant(web.HTTPNotFound):
    """The tenant does not exist, or the actor may not see it."""


class KeyApi:
    """Handlers. One per process that serves the API."""

    def __init__(
        self,
        store: KeyStore,
        audit: AuditLog,
        *,
        identify: Identify,
        policy: Callable[[], Policy | None],
        wall_clock: Callable[[], float],
        log_event: LogFunction,
    ) -> None:
        self._store = store
        self._audit = audit
        self._identify = identify
        self._policy = policy
        self._wall_clock = wall_clock
        self._log_event = log_event
        self._denials = DenialBudget(time.monotonic)
        # Its own: a folder that hangs must not hold threads that resolve the names of pods.
        self._threads = ThreadPoolExecutor(MAX_THREADS, "key api")

    def app(self) -> web.Application:
        """Return the application of the listener."""
        app = web.Application(middlewares=[_errors_as_json, body_timeout_middleware], client_max_size=MAX_BODY_BYTES)
        keys = "/v1/tenants/{tenant}/keys"
        app.add_routes(
            [
                web.get("/openapi.json", self._as(self._document)),
                web.get("/v1/keys", self._as(self._list)),
                web.get(keys, self._as(self._list)),
                web.post(keys, self._as(self._create)),
                web.get(keys + "/{id}", self._as(self._read)),
                web.patch(keys + "/{id}", self._as(self._limit)),
                web.delete(keys + "/{id}", self._as(self._revoke)),
                web.post(keys + "/{id}/rotate", self._as(self._rotate)),
            ]
        )
        return app

    def _as(self, answer: Callable[[Actor, web.Request], Awaitable[web.Response]]) -> Handler:
        async def identified(request: web.Request) -> web.StreamResponse:
            actor: Actor | None = None
            try:
                _check_no_browser(request)
                actor = self._actor_of(request)
                return await answer(actor, request)
            except (web.HTTPUnauthorized, web.HTTPForbidden, HiddenTenant) as denial:
                await self._note_denial(actor, request, denial.status)
                raise

        return identified

    def _actor_of(self, request: web.Request) -> Actor:
        try:
            return self._identify(request)
        except UnknownActor as unknown:
            raise web.HTTPUnauthorized(text=str(unknown), headers={"www-authenticate": "Bearer"}) from None
        except IssuerUnavailable:
            words = "The token issuer's keys are being fetched; retry in a second."
            raise web.HTTPServiceUnavailable(text=words, headers={"retry-after": "1"}) from None

    async def _note_denial(self, actor: Actor | None, request: web.Request, status: int) -> None:
        """Write a denial to the audit log, if its budget allows; a log that cannot be written denies as well."""
        left_out = self._denials.take()
        if left_out is None:
            return
        named = {name: request.match_info.get(name, "")[:MAX_AUDITED_CHARS] or None for name in ("tenant", "id")}
        resource = request.match_info.route.resource
        action = f"{request.method} {'' if resource is None else resource.canonical}"
        write = partial(
            self._audit.write,
            *(actor, action, "denied"),
            tenant=named["tenant"],
            key_id=named["id"],
            status=status,
            peer=request.remote,
            left_out=left_out,
        )
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, write)
        except OSError as error:
            self._log_event("error", "key_audit_failed", error=str(error.strerror or error))

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _document(self, actor: Actor, request: web.Request) -> web.Response:
        return _json(openapi_document())

    async def _list(self, actor: Actor, request: web.Request) -> web.Response:
        if unknown := set(request.query) - {"limit", "after"}:
            raise web.HTTPBadRequest(text=f"unknown parameter: {', '.join(sorted(unknown))[:200]}")
        tenant = request.match_info.get("tenant") or actor.tenant
        if tenant is not None:
            self._see(actor, tenant)
        limit = _limit(request.query.get("limit", str(MAX_KEYS_SHOWN)))
        first, _, second = request.query.get("after", "").partition("/")
        found = await self._of_store(self._store.list, tenant, (first, second), limit + 1)
        rows, more = found[:limit], len(found) > limit
        last = rows[-1].entry if rows else None
        return _json(
            {
                "keys": [_shown(each) for each in rows],
                "next": f"{last.tenant}/{last.key_id}" if more and last is not None else None,
            }
        )

    async def _read(self, actor: Actor, request: web.Request) -> web.Response:
        tenant, key_id = self._named(actor, request)
        stored = await self._of_store(self._store.read, tenant, key_id)
        return _json(_shown(stored), etag=stored.version)

    # -- changing --------------------------------------------------------------------------------------------------

    async def _create(self, actor: Actor, request: web.Request) -> web.Response:
        tenant = request.match_info["tenant"]
        self._see(actor, tenant)
        self._may_write(actor)
        wanted = await _body(request, NewKey)
        if wanted.id is not None and not KEY_ID.fullmatch(wanted.id):
            raise web.HTTPUnprocessableEntity(text="id: letters, digits, `.`, `_` and `-`, 64 characters at most")
        if wanted.user is not None and not wanted.user.isprintable():
            raise web.HTTPUnprocessableEntity(text="user: printable characters only")
        known = self._tenant(tenant)
        if wanted.group is not None and wanted.group not in known.groups:
            raise web.HTTPUnprocessableEntity(text="group: the tenant has no such group in the policy")
        until_s = inf if wanted.expires_in_s is None else self._wall_clock() + wanted.expires_in_s
        limits = _file_fields_of(wanted.limits or KeyLimits(), known)

        def create() -> CreatedKey:
            return self._store.create(
                tenant, wanted.id, user=wanted.user, group=wanted.group, until_s=until_s, limits=limits
            )

        created = await self._change(actor, "create", tenant, wanted.id, create)
        return _created(created)

    async def _rotate(self, actor: Actor, request: web.Request) -> web.Response:
        tenant, key_id = self._named(actor, request)
        self._may_write(actor)
        version, rotation = _version(request), await _body(request, Rotation)
        until_s = self._wall_clock() + rotation.grace_period_s
        return _created(
            await self._change(
                actor, "rotate", tenant, key_id, lambda: self._store.rotate(tenant, key_id, version, until_s)
            )
        )

    async def _limit(self, actor: Actor, request: web.Request) -> web.Response:
        tenant, key_id = self._named(actor, request)
        self._may_write(actor)
        version, change = _version(request), await _body(request, KeyChange)
        limits = _file_fields_of(change.limits, self._tenant(tenant))
        stored = await self._change(
            actor, "limit", tenant, key_id, lambda: self._store.limit(tenant, key_id, version, limits)
        )
        return _json(_shown(stored), etag=stored.version)

    async def _revoke(self, actor: Actor, request: web.Request) -> web.Response:
        tenant, key_id = self._named(actor, request)
        self._may_write(actor)
        version = _version(request)
        is_everywhere = await self._change(
            actor, "revoke", tenant, key_id, lambda: self._store.revoke(tenant, key_id, version)
        )
        if is_everywhere:
            return web.Response(status=204)
        return _json({"revoked": "on this host; on others once Redis is back"}, status=202)

    async def _change(self, actor: Actor, action: str, tenant: str, key_id: str | None, change: Callable[[], T]) -> T:
        """Make a change between its two lines of the audit log. A client that leaves does not stop it half-way."""
        return await asyncio.shield(
            asyncio.get_running_loop().create_task(self._audited(actor, action, tenant, key_id, change))
        )

    async def _audited(self, actor: Actor, action: str, tenant: str, key_id: str | None, change: Callable[[], T]) -> T:
        number, result = secrets.token_hex(8), "failed"

        async def note(result: str, key_id: str | None) -> None:
            write = partial(self._audit.write, actor, action, result, tenant=tenant, key_id=key_id, change=number)
            await asyncio.get_running_loop().run_in_executor(self._threads, write)

        try:
            await note("begun", key_id)
        except OSError:
            raise web.HTTPServiceUnavailable(text="the audit log cannot be written; nothing was changed") from None
        try:
            made = await self._of_store(change)
            result = "done"
            if isinstance(made, CreatedKey):
                key_id = made.stored.entry.key_id
            return made
        finally:
            try:
                await note(result, key_id)
            except OSError as error:  # The first line is written; a key that was made must reach its owner.
                self._log_event(
                    *("error", "key_audit_failed"), error=str(error.strerror or error), change=number, result=result
                )

    async def _of_store(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except KeyNotFound:
            raise web.HTTPNotFound(text="there is no such key") from None
        except VersionMismatch:
            raise web.HTTPPreconditionFailed(text="the key was changed meanwhile; read it again") from None
        except TooManyKeys:
            words = f"the tenant has {MAX_KEYS_PER_TENANT} keys, and may have no more: revoke some"
            raise web.HTTPConflict(text=words) from None
        except OSError as error:
            words = f"the store of keys cannot be used: {error.strerror or 'it is locked'}; see the audit log"
            raise web.HTTPServiceUnavailable(text=words) from None
        except InvalidValue as wrong:
            is_taken = str(wrong).endswith("already exists")
            raise (web.HTTPConflict if is_taken else web.HTTPUnprocessableEntity)(text=str(wrong)) from None

    # -- what an actor may do --------------------------------------------------------------------------------------

    def _named(self, actor: Actor, request: web.Request) -> tuple[str, str]:
        """Return tenant and id of the path."""
        tenant, key_id = request.match_info["tenant"], request.match_info["id"]
        self._see(actor, tenant)
        if "/" in key_id or key_id.startswith(".") or "\0" in key_id:
            raise web.HTTPNotFound(text="there is no such key")
        return tenant, key_id

    def _see(self, actor: Actor, tenant: str) -> None:
        """Raise 404 for a tenant that the actor may not see, exactly as for one that the policy does not have."""
        policy = self._policy()
        if policy is None or tenant not in policy.tenants or not actor.sees(tenant):
            raise HiddenTenant(text="there is no such tenant")

    def _tenant(self, name: str) -> Tenant:
        """Return a tenant of the policy, which may have changed since the request came. Raises `HiddenTenant`."""
        policy = self._policy()
        found = None if policy is None else policy.tenants.get(name)
        if found is None:
            raise HiddenTenant(text="there is no such tenant")
        return found

    def _may_write(self, actor: Actor) -> None:
        if not actor.may_write:
            raise web.HTTPForbidden(text=f"the role {actor.role.value} may not change keys")


async def _body(request: web.Request, kind: type[Body]) -> Body:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send the body as `Content-Type: application/json`")
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise web.HTTPUnprocessableEntity(text=str(error)) from None
    except UnicodeDecodeError:
        raise web.HTTPUnprocessableEntity(text="the body is not UTF-8") from None


def _file_fields_of(limits: KeyLimits, tenant: Tenant) -> dict[str, str]:
    try:
        return limits.file_fields(tenant)
    except InvalidValue as wrong:
        raise web.HTTPUnprocessableEntity(text=str(wrong)) from None


def _version(request: web.Request) -> str:
    """Return the version that a change was decided on."""
    given = request.headers.getall("if-match", [])
    if len(given) != 1 or not re.fullmatch(r'"[0-9a-f]{32}"', given[0]):
        raise web.HTTPPreconditionRequired(text="send the ETag of the key, as you read it, in `If-Match`")
    return given[0][1:-1]


def _limit(words: str) -> int:
    if not (words.isascii() and words.isdigit()) or len(words) > 4 or not 0 < int(words) <= MAX_KEYS_SHOWN:
        raise web.HTTPBadRequest(text=f"limit must be a whole number from 1 to {MAX_KEYS_SHOWN}")
    return int(words)


def _shown(stored: StoredKey) -> dict[str, object]:
    entry = stored.entry
    until = None if entry.until_s == inf else f"{datetime.fromtimestamp(entry.until_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "tenant": entry.tenant,
        "id": entry.key_id,
        "user": entry.user,
        "group": entry.group,
        "expires_at": until,
        "limits": {key: value if key == "budget_duration" else float(value) for key, value in entry.limits.items()},
        "fault": entry.fault or None,
        "etag": f'"{stored.version}"',
    }


def _created(created: CreatedKey) -> web.Response:
    return _json(_shown(created.stored) | {"key": created.secret}, status=201, etag=created.stored.version)


def _json(value: object, *, status: int = 200, etag: str | None = None) -> web.Response:
    headers = {"cache-control": "no-store"} | ({} if etag is None else {"etag": f'"{etag}"'})
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=headers
    )


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        answer = _json({"error": error.text or error.reason}, status=error.status)
        kept = ("allow", "www-authenticate", "retry-after")
        answer.headers.update({name: value for name, value in error.headers.items() if name.lower() in kept})
        return answer


def _check_no_browser(request: web.Request) -> None:
    """Reject web pages: a browser would send a client certificate on their behalf."""
    if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        raise web.HTTPForbidden(text="not for web pages")


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of the header `authorization`; None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
