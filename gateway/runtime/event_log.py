"""The event log: one JSON line per event of the process itself, beside its requests; also what libraries log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from gateway.runtime.events import EVENTS, format_timestamp
from gateway.runtime.line_writer import LineWriter

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Name to severity, as in `logging`."""

LogFunction = Callable[..., None]
"""Writes one event: level, event code, and fields by name. An `EventLog`, or a stand-in."""


class EventLog:
    """Writes what happens to the process itself, one JSON line per event."""

    def __init__(self, writer: LineWriter, level: str = "info", **always: object) -> None:
        """`always`: fields of every line, such as the number of the worker."""
        self.writer = writer
        self.level = level
        self._always = always

    def __call__(self, level: str, event: str, **fields: object) -> None:
        """Write an event; its message is that of its code, unless it is among the fields."""
        if LEVELS[level] >= LEVELS[self.level]:
            line = {
                "timestamp": format_timestamp(time.time()),
                "level": level,
                "event": event,
                "message": EVENTS.get(event, event),
                **self._always,
                **fields,
            }
            self.writer.put(msgspec.json.encode(line, enc_hook=str) + b"\n")


class LoggingBridge(logging.Handler):
    """Writes what libraries log through `logging` as events; warnings and errors only."""

    def __init__(self, log_event: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log_event = log_event

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event per record, with its error but no traceback: that belongs in a bug report."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        error = record.exc_info[1] if record.exc_info else None
        fields = {"error": repr(error)} if error else {}
        self._log_event(level, "library_log", message=record.getMessage(), logger=record.name, **fields)


def engine_fields(name: str) -> dict[str, object]:
    """Return the fields that name an engine: base URL of its pod, and its data-parallel rank where it has one."""
    upstream, _, rank = name.partition("#")
    return {"upstream": upstream, "dp_rank": int(rank)} if rank else {"upstream": upstream}
