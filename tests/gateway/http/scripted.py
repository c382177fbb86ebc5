"""Pods that play what they are told to, byte by byte, and how tests wait for things."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 120.0
"""Until a test that waits for something gives up."""


async def until(happens: Callable[[], object]) -> None:
    """Let everything else run until something is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not happens():  # noqa: ASYNC110 - anything at all may make it happen
            await asyncio.sleep(0)


@dataclass
class Question:
    """A request as a pod saw it."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def json(self) -> Any:
        return json.loads(self.body)


Step = bytes | asyncio.Event | Callable[[asyncio.StreamWriter], Any]


def cut(writer: asyncio.StreamWriter) -> None:
    """A step that ends the connection in the middle."""
    writer.transport.abort()


def close(writer: asyncio.StreamWriter) -> None:
    """A step that ends the connection after what was written."""
    writer.close()


class ScriptedPod:
    """Plays one script per request, the last one again and again."""

    def __init__(self) -> None:
        self.scripts: list[Sequence[Step]] = []
        self.questions: list[Question] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        """Accepted so far."""
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def plays(self, *scripts: Sequence[Step]) -> None:
        self.scripts = list(scripts)

    def close_listener(self) -> None:
        self._server.close()

    async def stop(self) -> None:
        self._server.close()
        for writer in tuple(self.writers):
            writer.transport.abort()
        await until(lambda: not self.writers)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self.connections += 1
        try:
            while question := await read_question(reader):
                self.questions.append(question)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                gone = (
                    asyncio.create_task(_is_gone(reader)) if any(isinstance(s, asyncio.Event) for s in script) else None
                )
                await self._play(script, writer, gone)
                if writer.is_closing() or gone:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _play(
        self, script: Sequence[Step], writer: asyncio.StreamWriter, gone: asyncio.Task[None] | None
    ) -> None:
        for step in script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, asyncio.Event):
                assert gone is not None
                await first_of(step.wait(), gone)
                if gone.done():
                    return
            else:
                step(writer)
        if gone is not None:
            gone.cancel()


async def _is_gone(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read(1)


async def first_of(one: Awaitable[Any], other: asyncio.Task[None]) -> None:
    task = asyncio.create_task(_awaited(one))
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()


async def _awaited(one: Awaitable[Any]) -> Any:
    return await one


async def read_question(reader: asyncio.StreamReader) -> Question | None:
    head = await read_head(reader)
    if head is None:
        return None
    line, headers = head
    return Question(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *fields = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (entry.split(": ", 1) for entry in fields)
    return line, {name.lower(): value for name, value in pairs}
