"""Who listens on a port of this machine, and as what it was started: read from /proc, as far as it is ours to read.

Nothing here fails: what may not be read was not said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.command_line import is_server

LISTENS = "0A"
"""TCP_LISTEN, as /proc/net/tcp writes it."""

ANCESTORS = 4
"""A server with several front ends listens in children whose names say nothing; their parent was given the flags."""

CACHES = frozenset(("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "HOME"))
"""Variables that say where models lie; of others than vLLM's own none is kept."""


@dataclass(frozen=True, slots=True)
class Command:
    """As what somebody was started."""

    words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    """Its file system, as we reach it: in a container it has another than we."""


def command_behind(port: int, proc: Path = Path("/proc")) -> Command:
    """The vLLM command that listens on a TCP port; empty where that cannot be known."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    for pid in _holders(sockets, proc) if sockets else ():
        for ancestor in _line_of(pid, proc):
            command = _command(ancestor, proc)
            if is_server(command.words):
                return command
    return Command()


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        for row in _text(proc / table).splitlines()[1:]:
            columns = row.split()
            if len(columns) > 9 and columns[3] == LISTENS and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _holders(sockets: set[str], proc: Path) -> Iterator[str]:
    for folder in proc.glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                yield folder.name
        except OSError:
            continue  # somebody else's, or gone meanwhile


def _line_of(pid: str, proc: Path) -> Iterator[str]:
    """Itself, its parent, and so on."""
    for _ in range(ANCESTORS):
        if pid in ("", "0", "1"):
            return
        yield pid
        # The name in brackets may hold anything, brackets too.
        pid = (_text(proc / pid / "stat").rpartition(")")[2].split() or ["", ""])[1:2][0]


def _command(pid: str, proc: Path) -> Command:
    words = tuple(_text(proc / pid / "cmdline").split("\0"))
    pairs = (line.partition("=") for line in _text(proc / pid / "environ").split("\0"))
    variables = {
        name: value for name, equals, value in pairs if equals and (name.startswith("VLLM_") or name in CACHES)
    }
    return Command(words, variables, proc / pid / "root")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
