"""Pods as a file lists them, watched for changes: edits, moves, and Kubernetes' swaps of a ConfigMap's symbolic links.

A file that is bad for a while costs nothing: the last good list stands, and the log says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.discovery import each_once, pod_place
from gateway.discovery.source import Found, Tell
from tenancy.document import DEEP, Wrong, load_yaml

POLL_S = 1.0
"""A stat a second costs nothing, and sees every kind of change on every kind of file system."""

Say = Callable[..., None]
Stamp = tuple[int, int, int, int]


class WatchedFile:
    """A YAML list of URLs or of mappings (`pod_place`), `pods: [...]`, or one URL a line."""

    name = "file"

    def __init__(self, path: Path, say: Say, *, poll_s: float = POLL_S) -> None:
        self._path = path
        self._say = say
        self._poll_s = poll_s
        self.trouble = ""
        self._seen: Stamp | str | None = "never"
        self._now = asyncio.Event()

    def look_now(self) -> None:
        """Read again at once, changed or not."""
        self._seen = "never"
        self._now.set()

    async def follow(self, tell: Tell) -> None:
        """Tell the list whenever it has changed and is good."""
        while True:
            self._look(tell)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._now.wait()
            except TimeoutError:
                continue
            finally:
                self._now.clear()

    def _look(self, tell: Tell) -> None:
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            found = read_pods(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            self._bad(error.strerror or "cannot be read")
        except (Wrong, UnicodeDecodeError) as error:
            self._bad(str(error))
        else:
            self.trouble = ""
            tell(found)

    def _bad(self, words: str) -> None:
        self.trouble = words
        self._say("error", "pod file is bad, the last good list stands", file=str(self._path), error=words)


def _stamp(path: Path) -> Stamp | None:
    try:
        held = os.stat(path)  # noqa: PTH116 - follows links, as the swap of a ConfigMap wants
    except OSError:
        return None
    return (held.st_dev, held.st_ino, held.st_size, held.st_mtime_ns)


def read_pods(text: str) -> tuple[Found, ...]:
    """The pods a file lists. Raises `Wrong`, also at an empty text: a half-written file looks like that."""
    try:
        listed: Any = load_yaml(text)
    except RecursionError:
        raise Wrong(f"not a list of pods: {DEEP}") from None
    except Exception as error:  # noqa: BLE001 - a date, number or tag that makes no value raises whatever it raises
        raise Wrong(f"not YAML: {' '.join(str(error).split())}") from None
    if isinstance(listed, dict):
        if unknown := [str(key) for key in listed if key != "pods"]:
            raise Wrong(f"{unknown[0]}: unknown key (only `pods` is known)")
        listed = listed.get("pods")
    if isinstance(listed, str):
        listed = listed.split()
    if listed is None:
        raise Wrong("lists nothing (an empty list is written [])")
    if not isinstance(listed, list):
        raise Wrong("must be a list of pods")
    return each_once(_found(at, entry) for at, entry in enumerate(listed))


def _found(at: int, entry: object) -> Found:
    try:
        return pod_place(entry)
    except Wrong as wrong:
        raise Wrong(f"pods[{at}]: {wrong}") from None
