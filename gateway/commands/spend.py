"""`hearth spend`: what tenants, groups, users and models have used, by day, from usage records.

Every request has one record, whatever became of it: one that was resumed, cancelled or escalated counts once, and one
that shared another's response has no tokens and no cost. Rotated and compressed files beside a log are read with it.
"""

from __future__ import annotations

import csv
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.commands.admin import format_table, printable
from gateway.commands.usage_log import COMPRESSED, LineHeader, is_record, read_lines
from gateway.config.loading import check_file
from tenancy.document import InvalidDocument, InvalidValue

GROUPINGS = ("tenant", "group", "user", "model", "day")

NONE = "(none)"
"""Stands for the tenant, group or user of a request that has none."""


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
"""What a spreadsheet takes for a formula at the start of a cell, and the apostrophe that is put before it."""


class SpendStep(Struct):
    model: str
    cost: float = 0.0


class SpendCascade(Struct):
    cost: float = 0.0
    steps: list[SpendStep] = []


class UsageRecord(LineHeader):
    """What spending needs of a usage record."""

    timestamp: str = ""
    tenant: str | None = None
    group: str | None = None
    user: str | None = None
    model: str = ""
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    input_cost: float | None = None
    output_cost: float | None = None
    cost: float | None = None
    """Missing from records of earlier versions."""
    cascade: SpendCascade | None = None


_DECODER = msgspec.json.Decoder(UsageRecord)


@dataclass(slots=True)
class Spending:
    """Sums over usage records; `cost` is in the currency of the prices."""

    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced_requests: int = 0
    """Requests with tokens and no price: their cost is missing from the sum."""

    def add(self, record: UsageRecord) -> None:
        """Add a record's tokens, without its cost."""
        self.requests += 1
        self.input_tokens += record.input_tokens or 0
        self.cached_input_tokens += record.cached_input_tokens or 0
        self.output_tokens += record.output_tokens or 0


COLUMNS = tuple(field.name for field in fields(Spending))

Key = tuple[str, ...]


@dataclass(slots=True)
class SpendReport:
    """Spending by the values of `by`, in the order of `GROUPINGS` that were asked for."""

    by: tuple[str, ...]
    rows: dict[Key, Spending]
    total: Spending
    unreadable_lines: int = 0


def read_spending(
    paths: Iterable[Path],
    by: tuple[str, ...],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    only: Mapping[str, str] | None = None,
) -> SpendReport:
    """Return the sums of all records that ended within the bounds (`until` excluded) and have the values of `only`.

    Raises `InvalidValue` where a file cannot be read or none has a record.
    """
    report, found = SpendReport(by, {}, Spending()), False
    for path in paths:
        for record in _records(path, report):
            found = True
            at = _time_of(record)
            if (since is not None and at < since) or (until is not None and at >= until):
                continue
            values = _values(record, at)
            if all(values[name] == wanted for name, wanted in (only or {}).items()):
                _add(report, record, values)
    if not found:
        raise InvalidValue("no file holds a usage record: name the usage_log of a gateway")
    return report


def _records(path: Path, report: SpendReport) -> Iterator[UsageRecord]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = _DECODER.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            report.unreadable_lines += bool(line.strip())
            continue
        if record.event is None and is_record(record, f"{path}:{number}"):
            yield record


def _time_of(record: UsageRecord) -> datetime:
    try:
        at = datetime.fromisoformat(record.timestamp)
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValue(f"record {record.request_id}: `timestamp` is not a time: {record.timestamp}") from None


def _values(record: UsageRecord, at: datetime) -> dict[str, str]:
    return {
        "tenant": record.tenant or NONE,
        "group": record.group or NONE,
        "user": record.user or NONE,
        "model": record.model,
        "day": at.date().isoformat(),
    }


def _add(report: SpendReport, record: UsageRecord, values: Mapping[str, str]) -> None:
    """Add a record. By model, a cascade's cost belongs to each model that was called, also for a discarded answer."""
    row = _row(report, values)
    row.add(record)
    report.total.add(record)
    if (cost := _cost_of(record)) is None:
        is_unpriced = record.input_tokens is not None
        row.unpriced_requests += is_unpriced
        report.total.unpriced_requests += is_unpriced
        return
    report.total.cost += cost
    if record.cascade is None or "model" not in report.by:
        row.cost += cost
        return
    for step in record.cascade.steps:
        _row(report, {**values, "model": step.model}).cost += step.cost


def _row(report: SpendReport, values: Mapping[str, str]) -> Spending:
    return report.rows.setdefault(tuple(values[name] for name in report.by), Spending())


def _cost_of(record: UsageRecord) -> float | None:
    if record.cost is not None:
        return record.cost
    if record.cascade is not None and record.cascade.steps:
        return record.cascade.cost
    if record.input_cost is None and record.output_cost is None:
        return None
    return (record.input_cost or 0.0) + (record.output_cost or 0.0)


# -- files ---------------------------------------------------------------------------------------------------------


def rotated_files(log: Path) -> list[Path]:
    """Return a log and its rotated files: `NAME.1`, `NAME-20261127.gz`, `STEM-20261127.jsonl.gz`; each once.

    Of a file and its compressed copy, which both exist while it is compressed, only the file is returned.
    """
    found = [log] if log.exists() else []
    stem, suffix = log.stem, log.suffix
    for path in sorted(log.parent.glob("*")):
        name = path.name
        is_after = name.startswith((f"{log.name}.", f"{log.name}-"))
        is_within = bool(suffix) and name.startswith((f"{stem}-", f"{stem}.")) and suffix in name[len(stem) + 1 :]
        if path != log and (is_after or is_within) and path.is_file():
            found.append(path)
    names = {path.name for path in found}
    return [path for path in found if path.suffix not in COMPRESSED or path.stem not in names]


# -- command -------------------------------------------------------------------------------------------------------


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    parser.add_argument(
        "log", metavar="USAGE_LOG", nargs="*", type=Path, help="usage log (default: usage_log of the configuration)"
    )
    parser.add_argument(
        "--config", metavar="FILE", help="configuration that names the usage log (default $HEARTH_CONFIG)"
    )
    parser.add_argument(
        "--by", metavar="NAME,...", default="tenant", help=f"of {', '.join(GROUPINGS)} (default tenant)"
    )
    for name in GROUPINGS[:-1]:
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"only this {name}")
    parser.add_argument(
        "--since", metavar="TIME", help="ended at or after, in UTC: 2026-11-01, or 2026-11-01T08:00:00Z"
    )
    parser.add_argument("--until", metavar="TIME", help="ended before")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="default table")
    parser.add_argument("--only-named", action="store_true", help="without the rotated files beside a log")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Print the report. Returns 0, or 1 where it cannot be made."""
    try:
        by = _groupings(arguments.by)
        paths = [
            path
            for log in arguments.log or [_configured_log(arguments, variables)]
            for path in ([log] if arguments.only_named else rotated_files(log) or [log])
        ]
        report = read_spending(
            dict.fromkeys(path.resolve() for path in paths),
            by,
            since=_time("--since", arguments.since),
            until=_time("--until", arguments.until),
            only={name: value for name in GROUPINGS[:-1] if (value := getattr(arguments, name)) is not None},
        )
    except InvalidValue as fault:
        sys.stderr.write(f"hearth: {printable(str(fault))}\n")
        return 1
    except InvalidDocument as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.errors))
        return 1
    {"table": _print_table, "csv": _print_csv, "json": _print_json}[arguments.format](report)
    if report.unreadable_lines:
        sys.stderr.write(f"hearth: {report.unreadable_lines} lines could not be read, and are not in the sums\n")
    return 0


def _groupings(words: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in words.split(","))
    if unknown := [name for name in names if name not in GROUPINGS]:
        raise InvalidValue(f"--by {unknown[0]}: must be of {', '.join(GROUPINGS)}")
    return tuple(dict.fromkeys(names))


def _configured_log(arguments: Namespace, variables: Mapping[str, str]) -> Path:
    named = arguments.config or variables.get("HEARTH_CONFIG")
    log = check_file(Path(named), variables).usage_log if named else None
    if log is None:
        raise InvalidValue("name a usage log, or with --config a configuration that has usage_log")
    return log


def _time(flag: str, words: str | None) -> datetime | None:
    if words is None:
        return None
    try:
        at = datetime.fromisoformat(words)
    except ValueError:
        raise InvalidValue(
            f"{flag} {words}: must be a day or a time, such as 2026-11-27 or 2026-11-27T08:00:00Z"
        ) from None
    return at.replace(tzinfo=at.tzinfo or UTC)


def _sorted_rows(report: SpendReport) -> Sequence[tuple[Key, Spending]]:
    return sorted(report.rows.items())


def _figures(sums: Spending) -> tuple[object, ...]:
    return tuple(getattr(sums, name) for name in COLUMNS)


def _print_table(report: SpendReport) -> None:
    rows = [
        *((key, sums) for key, sums in _sorted_rows(report)),
        (("total", *[""] * (len(report.by) - 1)), report.total),
    ]
    cells = [[*key, *_cells(sums)] for key, sums in rows]
    sys.stdout.write(format_table((*(name.upper() for name in report.by), *map(str.upper, COLUMNS)), cells))


def _cells(sums: Spending) -> Iterator[str]:
    for name in COLUMNS:
        value = getattr(sums, name)
        yield f"{value:.6f}" if isinstance(value, float) else f"{value:,}"


def _print_csv(report: SpendReport) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((*report.by, *COLUMNS))
    for key, sums in _sorted_rows(report):
        writer.writerow((*map(_csv_text, key), *_figures(sums)))


def _csv_text(name: str) -> str:
    """Return a name that no spreadsheet runs as a formula: a client may have chosen it."""
    return f"'{name}" if name.startswith(FORMULA_STARTS) else name


def _print_json(report: SpendReport) -> None:
    rows = [
        {**dict(zip(report.by, key, strict=True)), **dict(zip(COLUMNS, _figures(sums), strict=True))}
        for key, sums in _sorted_rows(report)
    ]
    total = dict(zip(COLUMNS, _figures(report.total), strict=True))
    sys.stdout.write(json.dumps({"by": report.by, "rows": rows, "total": total}, indent=2) + "\n")
