"""A local copy of one kind of object of the API server, kept current by list and watch.

Lists in pages, watches from the version of the list, resumes from the last version when a watch ends, and lists again
when that version has expired. Nothing is known until a first list is complete; afterwards the last known state stays
valid until the server reports a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from gateway.discovery.kubernetes.api import Api, Gone, Lost, Refused
from gateway.discovery.kubernetes.objects import Event, Meta, Status
from gateway.runtime.guard import restarted

T = TypeVar("T")

Say = Callable[..., None]

MOST_OBJECTS = 20_000
"""Of one kind: a wrong selector must not fill our memory."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Timing in seconds, and objects per page."""

    page: int = 500
    watch_s: float = 240.0
    """Maximum duration of a watch, drawn between half of it and all, to spread the gateways."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    brief_s: float = 1.0
    """A watch that ended sooner without an event has failed."""
    gather_s: float = 0.1
    """Changes are collected for this long before they are reported."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Which objects are listed, and how each is parsed."""

    path: str
    query: Mapping[str, str]
    read: Callable[[Raw], T | None]
    """Returns None for an object that is to be ignored. Raises ValueError if it is invalid."""


class Reflection(Generic[T]):
    """Calls `changed` after each list and each event."""

    def __init__(
        self,
        api: Api,
        kind: Kind[T],
        changed: Callable[[], object],
        *,
        say: Say,
        clock: Callable[[], float],
        draw: Callable[[], float],
        pace: Pace,
    ) -> None:
        self._api = api
        self._kind = kind
        self._changed = changed
        self._say = say
        self._clock = clock
        self._draw = draw
        self._pace = pace
        self._version: str | None = None
        """Resource version to continue from; None if a list is needed."""
        self._task: asyncio.Task[None] | None = None
        self.held: dict[str, T] = {}
        self.is_whole = False
        self.trouble = ""

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run `follow` as a task of the group."""
        self._task = group.create_task(self.follow(), name=f"follow {self._kind.path}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @restarted("discovery")
    async def follow(self) -> None:
        """Keep the copy current until cancelled."""
        wait_s = self._pace.first_wait_s
        while True:
            try:
                if self._version is None:
                    await self._list()
                    continue
                if await self._watch(self._version):
                    wait_s = self._pace.first_wait_s
                    continue
            except Gone:
                self._version = None
            except Refused as refused:
                # Whatever is wrong with the version, a list needs none.
                self._version = None
                self._note_trouble(str(refused))
            except Lost as lost:
                self._note_trouble(str(lost))
            await asyncio.sleep(wait_s * (0.5 + self._draw()))
            wait_s = min(self._pace.longest_wait_s, 2 * wait_s)

    async def _list(self) -> None:
        """List all objects in pages; the copy is replaced when the last page has arrived."""
        fresh: dict[str, T] = {}
        query = {**self._kind.query, "limit": str(self._pace.page)}
        while True:
            page = await self._api.page(self._kind.path, query)
            for item in page.items or ():
                self._put(fresh, item)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self.held, self.is_whole = fresh, True
        self._version = page.metadata.resource_version
        self._note_word()

    async def _watch(self, version: str) -> bool:
        """Apply events until the watch ends. Returns False if it ended at once without an event."""
        began_s, has_told = self._clock(), False
        lasts_s = self._pace.watch_s * (0.5 + 0.5 * self._draw())
        query = {**self._kind.query, "resourceVersion": version}
        async with aclosing(self._api.watch(self._kind.path, query, lasts_s)) as lines:
            async for line in lines:
                self._take(line)
                self._note_word()
                has_told = True
        return has_told or self._clock() - began_s >= self._pace.brief_s

    def _take(self, line: bytes) -> None:
        """Apply one event. Raises `Gone` and `Refused`."""
        try:
            event = msgspec.json.decode(line, type=Event)
            if event.type == "ERROR":
                raise _failure(msgspec.json.decode(event.object, type=Status))
            meta = msgspec.json.decode(event.object, type=Meta).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Refused(f"{self._kind.path}: {error}") from None
        if event.type == "DELETED":
            self.held.pop(meta.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._put(self.held, event.object)
        self._version = meta.resource_version or self._version

    def _put(self, held: dict[str, T], written: Raw) -> None:
        """Store one object, replacing its previous state."""
        name = ""
        try:
            name = msgspec.json.decode(written, type=Meta).metadata.name
            value = self._kind.read(written)
        except (ValueError, RecursionError) as error:
            self._say(
                "warning", "an object of Kubernetes cannot be read", path=self._kind.path, name=name, error=str(error)
            )
            value = None
        if value is None:
            held.pop(name, None)
            return
        if len(held) >= MOST_OBJECTS and name not in held:
            raise Refused(f"{self._kind.path}: more than {MOST_OBJECTS} objects: narrow the selector")
        held[name] = value

    def _note_word(self) -> None:
        if self.trouble:
            self._say("info", "Kubernetes answers again", path=self._kind.path)
        self.trouble = ""
        self._changed()

    def _note_trouble(self, words: str) -> None:
        if not self.trouble:
            self._say("warning", "Kubernetes does not answer as it should, what is known stands", error=words)
        self.trouble = words


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything that the reflections of one namespace share."""

    api: Api
    group: asyncio.TaskGroup
    changed: Callable[[], object]
    say: Say
    clock: Callable[[], float]
    draw: Callable[[], float]
    pace: Pace
    running: list[Reflection[Any]]

    @property
    def namespace(self) -> str:
        return self.api.account.namespace

    def begin(self, kind: Kind[T]) -> Reflection[T]:
        """Start and return a reflection."""
        reflection = Reflection(
            self.api, kind, self.changed, say=self.say, clock=self.clock, draw=self.draw, pace=self.pace
        )
        reflection.start(self.group)
        self.running.append(reflection)
        return reflection

    def end(self, reflection: Reflection[T]) -> None:
        """Stop a reflection."""
        reflection.stop()
        self.running.remove(reflection)


def _failure(status: Status) -> Gone | Refused:
    if status.code == 410 or status.reason in ("Expired", "Gone"):
        return Gone(status.message)
    return Refused(f"watch: {status.code} {status.reason}: {status.message[:200]}")
