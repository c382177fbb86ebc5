"""Pods listed in a file that is polled for changes: edits, moves, and Kubernetes' symlink swaps of a ConfigMap.

While the file is invalid, the last valid list stays in force and the fault is logged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.discovery import Found, each_once, pod_place
from gateway.discovery.source import Tell
from tenancy.document import DEEP, Wrong, load_yaml

POLL_S = 1.0
"""One stat a second is cheap, and detects every kind of change on every file system."""

Say = Callable[..., None]
Stamp = tuple[int, int, int, int]


class WatchedFile:
    """The file holds a YAML list of URLs or mappings, `pods: [...]`, or one URL a line."""

    name = "file"

    def __init__(self, path: Path, say: Say, *, poll_s: float = POLL_S) -> None:
        self._path = path
        self._say = say
        self._poll_s = poll_s
        self.trouble = ""
        self._last_version: Stamp | str | None = "never"
        self._reload_requested = asyncio.Event()

    def look_now(self) -> None:
        """Read the file again at once, even if it is unchanged."""
        self._last_version = "never"
        self._reload_requested.set()

    async def follow(self, tell: Tell) -> None:
        """Report the list whenever the file has changed and is valid."""
        while True:
            self._poll(tell)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._reload_requested.wait()
            except TimeoutError:
                continue
            finally:
                self._reload_requested.clear()

    def _poll(self, tell: Tell) -> None:
        version = _version_of(self._path)
        if version == self._last_version:
            return
        self._last_version = version
        try:
            found = read_pods(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            self._report_invalid(error.strerror or "cannot be read")
        except (Wrong, UnicodeDecodeError) as error:
            self._report_invalid(str(error))
        else:
            self.trouble = ""
            tell(found)

    def _report_invalid(self, words: str) -> None:
        self.trouble = words
        self._say("error", "pod file is bad, the last good list stands", file=str(self._path), error=words)


def _version_of(path: Path) -> Stamp | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - follows links, as the swap of a ConfigMap wants
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def read_pods(text: str) -> tuple[Found, ...]:
    """Parse the pods of a file. Raises `Wrong`, also if it is empty: a half-written file may be."""
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
    return each_once(_parse_entry(at, entry) for at, entry in enumerate(listed))


def _parse_entry(at: int, entry: object) -> Found:
    try:
        return pod_place(entry)
    except Wrong as wrong:
        raise Wrong(f"pods[{at}]: {wrong}") from None
