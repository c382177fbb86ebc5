"""A small API server of Kubernetes on loopback that lists and watches as the real one does, and fails as it does.

Every change has a version; a list is of one version, in pages; a watch tells what came after a version, and one whose
version is forgotten is told so (410, as a status or as an event); selectors turn changes into ADDED and DELETED.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from aiohttp import web

from tests.gateway.fake_pod import Pulse
from tests.gateway.kv_index.redis_servers import free_port

Object = dict[str, Any]

TOKEN = "account-token"


@dataclass(frozen=True, slots=True)
class Change:
    """What has become of one object: None where it was not, or is no more."""

    version: int
    path: str
    before: Object | None
    after: Object | None


VERSION = attrgetter("version")


@dataclass(slots=True)
class ApiServer:
    """What it holds; change it by `put` and `delete`."""

    token: str = TOKEN
    forbidden: set[str] = field(default_factory=set)
    """Ends of paths that our account may not read."""
    forbidden_patches: set[str] = field(default_factory=set)
    """Ends of paths that our account may not patch."""
    patches: list[tuple[str, Object]] = field(default_factory=list)
    """Names and patches, in order."""
    is_gone_an_event: bool = True
    ends_watches_at_once: bool = False
    port: int = 0
    lists: int = 0
    pages: int = 0
    watches: int = 0
    told_watches: int = 0
    """Those that have begun to tell."""
    versions_asked: list[str] = field(default_factory=list)
    """From which versions watches have begun."""
    pulse: Pulse = field(default_factory=Pulse)
    _version: int = 100
    _forgotten: int = 0
    """Up to this version nothing can be gone on from."""
    _objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _snapshots: dict[str, list[Object]] = field(default_factory=dict)
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _heard: asyncio.Condition = field(default_factory=asyncio.Condition)
    _bookmarks: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- what a test does ------------------------------------------------------------------------------------------

    async def put(self, path: str, made: Object) -> None:
        """Create an object or replace it. `path`: of its collection."""
        await self._change(path, made["metadata"]["name"], deepcopy(made))

    async def delete(self, path: str, name: str) -> None:
        await self._change(path, name, None)

    async def bookmark(self) -> None:
        """Tell everybody who watches the version of now."""
        self._bookmarks += 1
        await self._wake()

    def forget(self) -> None:
        """Compact: no version before now can be gone on from, no list continued."""
        self._forgotten = self._version
        self._snapshots.clear()

    async def cut_watches(self) -> None:
        """Break all of them off in the middle of a line."""
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def stop(self) -> None:
        """Be gone, connections and all."""
        await self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def start(self) -> None:
        """Listen, on the same port as before where there was one.

        One that outgoing connections never take: it is found free again, and nobody connects to himself meanwhile.
        """
        self.port = self.port or free_port()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_patch("/{path:.*}/{name}", self._patch)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def restart(self, *, version: int | None = None) -> None:
        """Lose all history; with another version, as after a backup was restored, also the count."""
        await self.stop()
        self._changes.clear()
        self._version = self._version + 1 if version is None else version
        self.forget()
        await self.start()

    def held(self, path: str) -> list[Object]:
        """All objects of a collection."""
        return [made for (where, _), made in sorted(self._objects.items()) if where == path]

    # -- how it answers --------------------------------------------------------------------------------------------

    async def _change(self, path: str, name: str, after: Object | None) -> None:
        before = self._objects.get((path, name))
        self._version += 1
        if after is None:
            self._objects.pop((path, name), None)
        else:
            after["metadata"]["resourceVersion"] = str(self._version)
            self._objects[path, name] = after
        self._changes.append(Change(self._version, path, before, after))
        await self._wake()

    async def _wake(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.pulse.beat()
        path = "/" + request.match_info["path"]
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if any(path.endswith(end) for end in self.forbidden):
            return status(403, "Forbidden", f"{path} is forbidden")
        if request.query.get("watch") == "1":
            return await self._watch(request, path)
        return self._list(request, path)

    async def _patch(self, request: web.Request) -> web.Response:
        """A merge patch (RFC 7396) of one object, as `kubectl patch --type merge` sends it."""
        path, name = "/" + request.match_info["path"], request.match_info["name"]
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if any(path.endswith(end) for end in self.forbidden_patches):
            return status(403, "Forbidden", f'pods "{name}" is forbidden: cannot patch resource "pods"')
        if request.content_type != "application/merge-patch+json":
            return status(415, "UnsupportedMediaType", f"the body of the request was in {request.content_type}")
        held = self._objects.get((path, name))
        if held is None:
            return status(404, "NotFound", f'pods "{name}" not found')
        patch = await request.json()
        self.patches.append((name, patch))
        await self._change(path, name, merged(held, patch))
        return web.json_response(self._objects[path, name])

    def _list(self, request: web.Request, path: str) -> web.Response:
        self.pages += 1
        limit = int(request.query.get("limit", "0"))
        if "continue" in request.query:
            version, at = json.loads(b64decode(request.query["continue"]))
            if version not in self._snapshots:
                return status(410, "Expired", "The provided continue parameter is too old")
        else:
            self.lists += 1
            version, at = str(self._version), 0
            self._snapshots[version] = [made for made in self.held(path) if matches(made, request.query)]
        found = self._snapshots[version]
        shown = found[at : at + limit] if limit else found[at:]
        metadata = {"resourceVersion": version}
        if at + len(shown) < len(found):
            metadata["continue"] = b64encode(json.dumps([version, at + len(shown)]).encode()).decode()
        return web.json_response({"kind": "List", "metadata": metadata, "items": shown})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        self.watches += 1
        requested = request.query["resourceVersion"]
        self.versions_asked.append(requested)
        begins = int(requested)
        if begins > self._version:
            return status(504, "Timeout", f"Too large resource version: {begins}, current: {self._version}")
        if begins < self._forgotten and not self.is_gone_an_event:
            return status(410, "Expired", f"too old resource version: {begins} ({self._forgotten})")
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        await answer.prepare(request)
        if self.ends_watches_at_once:
            return answer
        if begins < self._forgotten:
            await answer.write(line("ERROR", fault(410, "Expired", "too old resource version")))
            return answer
        task = asyncio.create_task(self._tell(answer, path, begins, request.query))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                await task
        except TimeoutError:
            return answer
        except asyncio.CancelledError:
            await answer.write(b'{"type":"MODI')
            if request.transport is not None:
                request.transport.abort()
            raise
        return answer

    async def _tell(self, answer: web.StreamResponse, path: str, version: int, query: Mapping[str, str]) -> None:
        bookmarks = self._bookmarks
        self.told_watches += 1
        self.pulse.beat()
        while True:
            for change in self._changes[bisect_right(self._changes, version, key=VERSION) :]:
                version = change.version
                if change.path == path and (reported := event(change, query)):
                    await answer.write(reported)
            if bookmarks != self._bookmarks and query.get("allowWatchBookmarks") == "true":
                bookmarks = self._bookmarks
                marked = {"kind": "Object", "metadata": {"resourceVersion": str(self._version)}}
                await answer.write(line("BOOKMARK", marked))
            async with self._heard:
                if bookmarks == self._bookmarks and version >= max(map(VERSION, self._changes[-1:]), default=0):
                    await self._heard.wait()


def event(change: Change, query: Mapping[str, str]) -> bytes | None:
    """As one who watches with these selectors is told it: what leaves the selection is deleted for him."""
    was = change.before is not None and matches(change.before, query)
    if change.after is not None and matches(change.after, query):
        return line("MODIFIED" if was else "ADDED", change.after)
    if not was or change.before is None:
        return None
    last = deepcopy(change.after or change.before)
    last["metadata"]["resourceVersion"] = str(change.version)
    return line("DELETED", last)


def merged(held: Object, patch: Object) -> Object:
    """The object after a merge patch: null removes a field."""
    made = deepcopy(held)
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = merged(made.get(name) or {}, value)
        else:
            made[name] = value
    return made


def matches(made: Object, query: Mapping[str, str]) -> bool:
    """Selectors of equality, as far as lists and watches of ours use them."""
    labels = made["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, sign, value = term.partition("!=") if "!=" in term else term.partition("=")
        if (labels.get(key) == value) is (sign == "!="):
            return False
    field_of = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return not field_of or made["metadata"]["name"] == field_of


def line(kind: str, held: Object) -> bytes:
    return json.dumps({"type": kind, "object": held}).encode() + b"\n"


def fault(code: int, reason: str, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(fault(code, reason, message), status=code)


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """It runs inside."""
    server = ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
