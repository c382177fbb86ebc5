"""Opens the logs of a gateway: events and requests, and the usage and route logs if configured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.observe.request_log import OutcomeLog, request_line, usage_line
from gateway.observe.route_log import RouteRecorder, shared_key
from gateway.runtime.event_log import EventLog
from gateway.runtime.host import HostProcess
from gateway.runtime.line_writer import STDOUT, LineWriter
from tenancy.document import ConfigError, InvalidDocument


def open_logs(
    settings: Settings, prices: Mapping[str, ModelEntry], host: HostProcess
) -> tuple[EventLog, dict[str, OutcomeLog]]:
    """Return the event log, and the logs of requests by name. Raises `InvalidDocument` if a file cannot be written."""
    stdout = LineWriter(STDOUT, lock=host.lock_path("stdout"))
    log_event = EventLog(stdout, settings.log_level, **({"worker": host.number} if host.number else {}))
    logs = {"requests": OutcomeLog(stdout, partial(request_line, level=lambda: log_event.level, prices=prices))}
    if settings.usage_log:
        logs["usage"] = OutcomeLog(_writer("usage", settings.usage_log, host), partial(usage_line, prices=prices))
    if settings.route_log:
        writer = _writer("route", settings.route_log, host)
        logs["route"] = OutcomeLog(writer, RouteRecorder(shared_key(host.folder)))
    return log_event, logs


def _writer(name: str, path: Path, host: HostProcess) -> LineWriter:
    try:
        return LineWriter(path, lock=host.lock_path(name))
    except OSError as error:
        raise InvalidDocument([ConfigError(f"{name}_log", f"cannot write `{path}`: {error.strerror}")]) from None
