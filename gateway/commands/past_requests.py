"""Reads logged requests from a usage log or a gateway's log, to try a policy on."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from gateway.commands.usage_log import LineHeader, is_record
from gateway.pipeline.record import CLIENT_GONE_STATUS
from tenancy.document import InvalidValue
from tenancy.report.dry_run import LoggedRequest

MIN_REJECTED_STATUS = 400
"""Minimum status of a rejected request."""


def read_logged_requests(path: Path) -> list[LoggedRequest]:
    """Return the requests by time; other lines are skipped. Raises `InvalidValue`
    if there are none or if one has another schema version, and OSError.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        found = [past for number, line in enumerate(lines, 1) if (past := _past(line, f"{path}:{number}")) is not None]
    if not found:
        raise InvalidValue(f"{path} holds no request: it must be a usage log, or the log of a gateway, as JSON lines")
    return sorted(found, key=lambda past: past.at_s)


def _past(line: str, place: str) -> LoggedRequest | None:
    """Return the request of a line, None where it is no record of one. Raises `InvalidValue` for another schema."""
    try:
        told: dict[str, Any] = json.loads(line)
        if not is_record(msgspec.convert(told, LineHeader), place):
            return None
        # A record is written when a request ends.
        duration_s = float(told.get("duration_s") or 0.0)
        tokens, status = told.get("input_tokens"), int(told.get("status") or 0)
        return LoggedRequest(
            at_s=datetime.fromisoformat(told["timestamp"]).timestamp() - duration_s,
            tenant=told["tenant"],
            model=str(told["model"]),
            user=told.get("user"),
            group=told.get("group"),
            input_tokens=int(tokens or 0),
            cached_tokens=int(told.get("cached_input_tokens") or 0),
            output_tokens=int(told.get("output_tokens") or 0),
            duration_s=duration_s,
            was_rejected=tokens is None and MIN_REJECTED_STATUS <= status != CLIENT_GONE_STATUS,
            is_unary=told.get("stream") is False,
            prompt_bytes=int(told.get("prompt_bytes") or 0),
            max_tokens=None if (most := told.get("max_tokens")) is None else int(most),
        )
    except InvalidValue:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
