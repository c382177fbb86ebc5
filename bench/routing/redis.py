"""A Redis of one venue's own, on the loopback address, that can be taken away and given back."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

from bench.overhead.gateways import free_port

START_S = 10.0
ASK_AGAIN_S = 0.05


def redis_binary() -> str | None:
    """The server that the dev extra installs, or the system's."""
    bundled = Path(sys.executable).parent / "redis-server"
    return str(bundled) if bundled.exists() else shutil.which("redis-server")


class VenueRedis:
    """Keeps nothing over a restart, as a cache service that failed over to an empty node."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._program: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Run it, and wait until it listens. Raises FileNotFoundError if it is not installed."""
        binary = redis_binary()
        if binary is None:
            raise FileNotFoundError("redis-server")
        arguments = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        self._program = await asyncio.create_subprocess_exec(
            binary, *arguments, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        async with asyncio.timeout(START_S):
            while True:
                if await self._listens():
                    return
                await asyncio.sleep(ASK_AGAIN_S)

    def stall(self) -> None:
        """Let it answer nothing from now on, with its connections open, as on a machine that swaps."""
        if self._program is not None:
            self._program.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on where it was stalled."""
        if self._program is not None:
            self._program.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """At once, as a machine that has lost its power. Safe to call again."""
        program, self._program = self._program, None
        if program is not None and program.returncode is None:
            program.kill()
            await program.wait()

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True
