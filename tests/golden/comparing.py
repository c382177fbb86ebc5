"""Compares a fresh golden run with the recorded one: record by record, by kind and in order."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parent / "golden.jsonl.gz"


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write the records; the same records give the same bytes."""
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().split("\n") if line]


def compare(expected: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each record that differs; empty where all is as recorded."""
    differences = []
    before, after = _by_kind(expected), _by_kind(json.loads(json.dumps(found)))
    for kind in dict.fromkeys((*before, *after)):
        for number, (was, is_now) in enumerate(zip_longest(before[kind], after[kind])):
            if was != is_now:
                differences.append(f"{' '.join(kind)} {number}: {_first_difference(was, is_now)}")
    return differences


def _by_kind(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        found[record["shell"], record["kind"]].append(record)
    return found


def _first_difference(was: Any, is_now: Any, path: str = "") -> str:
    """Return where two values differ first."""
    if isinstance(was, dict) and isinstance(is_now, dict):
        for name in dict.fromkeys((*was, *is_now)):
            if was.get(name) != is_now.get(name) and name not in ("sha256", "bytes"):
                return _first_difference(was.get(name), is_now.get(name), f"{path}.{name}")
    if isinstance(was, list) and isinstance(is_now, list):
        for at, (one, other) in enumerate(zip_longest(was, is_now)):
            if one != other:
                return _first_difference(one, other, f"{path}[{at}]")
    return f"{path or 'all of it'}: {_short(was)} was recorded, {_short(is_now)} is found"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
