"""Recorded lines and admin pages in today's field names, by docs/public-names.json: their names depend on their place.

A path is the names that lead to a value, without the positions in lists; `*` stands for any name, and `path=text` for a
text at a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isclose
from typing import Any

from gateway.pipeline.record import REQUEST_EVENT
from gateway.runtime.events import EVENTS
from tests.golden.normal import renamed
from tests.sources import ROOT

Path = tuple[str | int, ...]
Fields = dict[str, str | None]

ANY = "*"

_MAP: dict[str, Any] = json.loads((ROOT / "docs/public-names.json").read_text(encoding="utf-8"))

TIMES = ("duration_s", "ttft_s", "queue_wait_s")
"""Fields of lines that were in milliseconds."""

ACCOUNTS = "accounts."
"""Where the records of /limits stand on the page."""


def renewed(record: dict[str, Any], names: Fields) -> dict[str, Any] | None:
    """The record with today's fields, without those that were added since; None where the map has none of its kind."""
    said = record.get("said")
    if not isinstance(said, dict):
        return None
    if record["kind"] == "line":
        if record["log"] == "usage.jsonl":
            return record | {"said": _refit(said, "usage_fields", "", names)}
        return record | {"said": _line(said, names)}
    match record:
        case {"kind": "page", "path": "/receipts"}:
            return record | {"said": _refit(said, "receipt_fields", "", names)}
        case {"kind": "page", "path": "/fleet" | "/limits" as page}:
            return record | {"said": _refit(said, "admin_fields", f"{page} ", names)}
        case {"kind": "deed", "what": "reload" | "drain" | "undrain" as what}:
            page = "/reload" if what == "reload" else "/pods/drain"
            return record | {"said": _refit(said, "admin_fields", f"{page} ", names)}
    return None


def without_added(record: dict[str, Any]) -> dict[str, Any]:
    """A fresh record without the fields that were added since the recording."""
    said = record.get("said")
    if not isinstance(said, dict):
        return record
    added, prefix = _MAP["added"], ""
    match record:
        case {"kind": "line", "log": "usage.jsonl"}:
            names = added["usage_fields"]
        case {"kind": "line"}:
            event = said["event"]
            prefix = "request." if event == REQUEST_EVENT else f"event.{event}."
            names = [name for name in added["log_fields"] if name != "event.library_log.message"]
            said = {name: value for name, value in said.items() if name != "event"}
        case {"kind": "page", "path": "/receipts"}:
            names = added["receipt_fields"]
        case {"kind": "page", "path": page}:
            prefix = f"{page} {ACCOUNTS if page == '/limits' else ''}"
            names = added["admin_fields"]
        case _:
            return record
    for name in names:
        if name.startswith(prefix):
            said = _without(said, name.removeprefix(prefix).split("."))
    return record | {"said": said}


def _without(value: Any, path: list[str]) -> Any:
    """The value without what is at a path, in each item of lists."""
    match value:
        case list():
            return [_without(held, path) for held in value]
        case dict() if path[0] in value or path[0] == ANY:
            if len(path) == 1:
                return {name: held for name, held in value.items() if name != path[0] and path[0] != ANY}
            return {name: _without(held, path[1:]) if path[0] in (ANY, name) else held for name, held in value.items()}
        case _:
            return value


def with_close_times(record: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """The record with the fresh one's times where they differ by what was rounded in milliseconds."""
    said, now = record["said"], fresh["said"]
    if record["kind"] != "line" or not isinstance(said, dict) or not isinstance(now, dict):
        return record
    same = {name: now[name] for name in TIMES if name in said and _are_close(said[name], now.get(name))}
    return record | {"said": said | same}


def _are_close(one: Any, other: Any) -> bool:
    return isinstance(one, float) and isinstance(other, float) and isclose(one, other, rel_tol=1e-5)


def _line(said: dict[str, Any], names: Fields) -> dict[str, Any]:
    message = said["message"]
    if message == "request":
        if (ended := said.get("error_type")) is not None and (ended == "client_gone" or ended.isdigit()):
            said = said | {"error_type": None}
        return _refit(said, "log_fields", "request.", names) | {"message": EVENTS[REQUEST_EVENT]}
    old = "event.{library message}" if "logger" in said else f"event.{message}"
    if message.startswith("pod ") and old not in _MAP["log_fields"]:
        old = "event.pod {standing}"
    new = _MAP["log_fields"][old]
    common = {name: said[name] for name in ("timestamp", "level", "message")}
    if "logger" not in said:
        common["message"] = EVENTS[new.removeprefix("event.")]
    fields = {name: value for name, value in said.items() if name not in common}
    return common | _refit(fields, "log_fields", f"{old}.", names, f"{new}.")


def _refit(value: dict[str, Any], section: str, old: str, names: Fields, new: str | None = None) -> dict[str, Any]:
    """The values at their new paths, which the section has behind `old`, and without `new`."""
    new = old if new is None else new
    found: dict[str, Any] = {}
    prefix = ACCOUNTS if old == "/limits " and "account" in value else ""
    for path, leaf in _leaves(value):
        dotted = ".".join(name for name in path if isinstance(name, str))
        target, wild = _target(_MAP[section], old + prefix, dotted)
        if target is None and wild is not None:
            continue
        text = _MAP[section].get(f"{old}{prefix}{dotted}={leaf}")
        kept = text.rpartition("=")[2] if text else renamed(leaf, names)
        factor = _MAP["units"].get(f"{section} {old}{prefix}{dotted}")
        if factor is not None and kept is not None:
            kept = float(f"{kept * factor:.6g}")
        if target is None:
            target = ".".join(str(names.get(name, name)) for name in dotted.split("."))
        else:
            fills = iter([_in_parent(dotted.split("."), name, names) for name in wild or ()])
            shown = target.removeprefix(new + prefix)
            target = ".".join(next(fills) if name == ANY else name for name in shown.split("."))
        _put(found, target.split("."), [step for step in path if isinstance(step, int)], path, kept)
    return found


def _in_parent(path: list[str], name: str, names: Fields) -> str:
    """Today's name of a name that stands for itself in the map; `parent.name` in the names goes before `name`."""
    parent = path[path.index(name) - 1] if name in path[1:] else ""
    return str(names.get(f"{parent}.{name}", names.get(name, name)))


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, held in value.items():
            yield from _leaves(held, (*path, name))
    elif isinstance(value, list) and value and any(isinstance(each, dict) for each in value):
        for at, held in enumerate(value):
            yield from _leaves(held, (*path, at))
    else:
        yield path, value


def _target(fields: Fields, prefix: str, dotted: str) -> tuple[str | None, tuple[str, ...] | None]:
    """The new path, and what stood at each `*`; (None, None) where the map does not know the path."""
    if prefix + dotted in fields:
        return fields[prefix + dotted], ()
    names = dotted.split(".")
    for old, new in fields.items():
        parts = old.removeprefix(prefix).split(".")
        if old.startswith(prefix) and len(parts) == len(names) and ANY in parts:
            pairs = list(zip(parts, names, strict=True))
            if all(part in (ANY, name) for part, name in pairs):
                return new, tuple(name for part, name in pairs if part == ANY)
    # A container that is empty or null has the name of what it would hold.
    for old, new in fields.items():
        if old.startswith(f"{prefix}{dotted}.") and new is not None:
            depth = len(old.removeprefix(prefix).split(".")) - len(names)
            return ".".join(new.split(".")[:-depth]), ()
    return None, None


def _put(found: dict[str, Any], target: list[str], positions: list[int], path: Path, value: Any) -> None:
    """Lists stand behind as many names as in the old path."""
    behind = [at - number for number, at in enumerate(at for at, step in enumerate(path) if isinstance(step, int))]
    held: Any = found
    for number, name in enumerate(target, start=1):
        is_list = number in behind
        if number == len(target) and not is_list:
            held[name] = value
            return
        held = held.setdefault(name, [] if is_list else {})
        if is_list:
            at = positions[behind.index(number)]
            while len(held) <= at:
                held.append({})
            held = held[at]
