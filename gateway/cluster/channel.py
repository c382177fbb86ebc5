"""A socket between a supervisor and one child, over which whole values go. When it ends, the other side has gone.

Nobody else holds an end of it, so it also ends when the other side is killed: a child learns that way that it is alone.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from contextlib import suppress
from typing import Self, cast

from gateway.cluster.messages import Word

LENGTH_BYTES = 4


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over a connected socket, which it then owns."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, word: Word) -> None:
        """Say something. Never waits, and is lost where nobody is there."""
        said = pickle.dumps(word)
        self._writer.write(len(said).to_bytes(LENGTH_BYTES, "big") + said)

    async def receive(self) -> Word | None:
        """What the other side says next, None where it has gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            said = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return cast("Word", pickle.loads(said))  # noqa: S301 - of our own kin, over a socket that nobody else holds

    async def close(self) -> None:
        """Be gone for the other side, once it has what was said."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
