"""Pods listed in a file that is polled for changes: edits, moves, and Kubernetes' symlink swaps of a ConfigMap.

While the file is invalid, the last valid list stays in force and the fault is logged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.discovery import DiscoveredPod, parse_pod, unique_pods
from gateway.discovery.source import PodsCallback
from tenancy.document import DEEP, InvalidValue, load_yaml

POLL_INTERVAL_S = 1.0
"""One stat a second is cheap, and detects every kind of change on every file system."""

LogFunction = Callable[..., None]
FileVersion = tuple[int, int, int, int]


class PodFileSource:
    """The file holds a YAML list of URLs or mappings, `pods: [...]`, or one URL a line."""

    name = "file"

    def __init__(self, path: Path, log_event: LogFunction, *, poll_s: float = POLL_INTERVAL_S) -> None:
        self._path = path
        self._log_event = log_event
        self._poll_s = poll_s
        self.trouble = ""
        self._last_version: FileVersion | str | None = "never"
        self._reload_requested = asyncio.Event()

    def reload_now(self) -> None:
        """Read the file again at once, even if it is unchanged."""
        self._last_version = "never"
        self._reload_requested.set()

    async def follow(self, notify: PodsCallback) -> None:
        """Report the list whenever the file has changed and is valid."""
        while True:
            self._poll(notify)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._reload_requested.wait()
            except TimeoutError:
                continue
            finally:
                self._reload_requested.clear()

    def _poll(self, notify: PodsCallback) -> None:
        version = _version_of(self._path)
        if version == self._last_version:
            return
        self._last_version = version
        try:
            found = parse_pods(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            self._report_invalid(error.strerror or "cannot be read")
        except (InvalidValue, UnicodeDecodeError) as error:
            self._report_invalid(str(error))
        else:
            self.trouble = ""
            notify(found)

    def _report_invalid(self, words: str) -> None:
        self.trouble = words
        self._log_event("error", "pod_file_invalid", file=str(self._path), error=words)


def _version_of(path: Path) -> FileVersion | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - follows links, as the swap of a ConfigMap wants
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def parse_pods(text: str) -> tuple[DiscoveredPod, ...]:
    """Parse the pods of a file. Raises `InvalidValue`, also if it is empty: a half-written file may be."""
    try:
        listed: Any = load_yaml(text)
    except RecursionError:
        raise InvalidValue(f"not a list of pods: {DEEP}") from None
    except Exception as error:  # noqa: BLE001 - a date, number or tag that makes no value raises whatever it raises
        raise InvalidValue(f"not YAML: {' '.join(str(error).split())}") from None
    if isinstance(listed, dict):
        if unknown := [str(key) for key in listed if key != "pods"]:
            raise InvalidValue(f"{unknown[0]}: unknown key (only `pods` is known)")
        listed = listed.get("pods")
    if isinstance(listed, str):
        listed = listed.split()
    if listed is None:
        raise InvalidValue("lists nothing (an empty list is written [])")
    if not isinstance(listed, list):
        raise InvalidValue("must be a list of pods")
    return unique_pods(_parse_entry(at, entry) for at, entry in enumerate(listed))


def _parse_entry(at: int, entry: object) -> DiscoveredPod:
    try:
        return parse_pod(entry)
    except InvalidValue as wrong:
        raise InvalidValue(f"pods[{at}]: {wrong}") from None
