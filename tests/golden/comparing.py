"""Holds a fresh golden run against the recorded one: record by record, by kind and in order."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.golden.fields import renewed, with_close_times, without_added
from tests.golden.metric_names import comparable, translated
from tests.golden.normal import differs, renamed

HERE = Path(__file__).parent
RECORDING = HERE / "golden.jsonl.gz"
NAMES = HERE / "names.json"
"""Old names of fields, headers, reasons and whole texts to new ones; null: no longer there.

`=text`: a whole text only, not a field. `+field`: a field that the recording does not have. Metrics and their labels
are in `docs/public-names.json`.
"""

Names = dict[str, str | None]


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """The same records give the same bytes."""
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def read(path: Path) -> list[dict[str, Any]]:
    """What was written."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().split("\n") if line]


def compare(expected: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], names: Names) -> list[str]:
    """What differs, a line or two for each record; empty where all is as recorded."""
    told = []
    plain = json.loads(json.dumps(found))
    before, after = _by_kind(expected), _by_kind(plain)
    for kind in dict.fromkeys((*before, *after)):
        if kind[1] == "metric":
            told += list(_metrics(kind, before[kind], after[kind], names))
            continue
        pairs = zip_longest(before[kind], after[kind])
        for number, (was, is_now) in enumerate(pairs):
            shown, fresh, left = was, is_now, names
            if was is not None and is_now is not None and (refitted := renewed(was, names)) is not None:
                fresh = without_added(is_now)
                shown, left = with_close_times(refitted, fresh), {}
            if shown is None or fresh is None or differs(shown, fresh, left):
                told.append(f"{' '.join(kind)} {number}: {_first_difference(renamed(shown, left), fresh)}")
    return told


def _metrics(
    kind: tuple[str, str], before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], names: Names
) -> Iterator[str]:
    """Samples by name and labels: renamed ones stand in another order."""

    def by_name(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        # Sums over labels are added up in another order than what was recorded.
        return {
            f"{each['name']}{json.dumps(each['labels'], sort_keys=True)}": round(each["value"], 9) for each in samples
        }

    was = by_name(list(translated(before, names)))
    is_now = by_name(comparable(after))
    for name in sorted({*was, *is_now}):
        if was.get(name) != is_now.get(name):
            yield f"{' '.join(kind)} {name}: {was.get(name)} was recorded, {is_now.get(name)} is found"


def _by_kind(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        found[record["shell"], record["kind"]].append(record)
    return found


def _first_difference(was: Any, is_now: Any, path: str = "") -> str:
    """Where two values part first."""
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
    told = json.dumps(value)
    return told if len(told) <= 200 else f"{told[:200]}..."
