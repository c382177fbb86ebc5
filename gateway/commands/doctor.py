"""`hearth doctor` and `hearth baseline`: what is wrong with a fleet, by a gateway's admin port or a support bundle.

Exit statuses of `hearth doctor`: 0 where nothing slows requests, 1 where the command fails, 2 for an invalid command
line, 3 where a finding slows or fails requests, 4 where nothing was found and the first question has no answer.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from diagnosis.comparison import first_answer
from diagnosis.finding import Evidence, FirstAnswer, Question, Severity
from gateway.commands.admin import DEFAULT_URL, AdminClient, View, add_place_flags, format_table, printable, read_token
from gateway.config.loading import check_file
from gateway.diagnosis.baseline_store import read_baseline
from gateway.diagnosis.doctor import LOOK_INTERVAL_S, describe
from gateway.diagnosis.view import (
    MAX_BUNDLE_BYTES,
    InvalidBundle,
    SupportBundle,
    baseline_of,
    diagnose_bundle,
    facts_of,
    read_bundle,
    show_diagnosis,
)
from gateway.runtime.files import replace_file
from tenancy.document import InvalidDocument, InvalidValue

HEALTHY, FAILED, FOUND, UNKNOWN = 0, 1, 3, 4
"""Exit statuses."""

MAX_GAPS_SHOWN = 12

GZIP_MAGIC = b"\x1f\x8b"


def add_doctor_flags(parser: ArgumentParser) -> None:
    """Add the flags of `hearth doctor`."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--config", metavar="FILE", help="configuration of the gateway: its admin port and token")
    place.add_argument("--bundle", metavar="FILE", help="diagnose a support bundle, without a gateway")
    parser.add_argument("--save-bundle", metavar="FILE", help="write a support bundle, and print nothing else")
    parser.add_argument("--watch", action="store_true", help="look again every 5 s until interrupted")
    add_place_flags(parser)


def add_baseline_flags(parser: ArgumentParser) -> None:
    """Add the actions and flags of `hearth baseline`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    save = actions.add_parser("save", help="write the baseline that the gateway has learned")
    save.add_argument("--reset", action="store_true", help="drop what was learned first: the fleet was changed")
    add_place_flags(save)
    compare = actions.add_parser("compare", help="compare the requests of the last half minute with the baseline")
    compare.add_argument("--file", metavar="FILE", help="a saved baseline (default: the gateway's own)")
    add_place_flags(compare)


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run `hearth doctor` or `hearth baseline`. Returns the exit status."""
    try:
        if arguments.command == "baseline":
            return _baseline(arguments, _client(arguments, variables))
        if arguments.bundle is not None:
            return _show(arguments, _offline(Path(arguments.bundle)))
        client = _client(arguments, variables)
        if arguments.save_bundle is not None:
            return _save_bundle(client, Path(arguments.save_bundle))
        return _watch(arguments, client) if arguments.watch else _show(arguments, client.get("/findings"))
    except InvalidDocument as invalid:
        sys.stderr.write("".join(f"hearth: {fault}\n" for fault in invalid.errors))
    except (InvalidValue, InvalidBundle) as fault:
        sys.stderr.write(f"hearth: {fault}\n")
    return FAILED


def _client(arguments: Namespace, variables: Mapping[str, str]) -> AdminClient:
    if getattr(arguments, "config", None) is None:
        url = arguments.url or variables.get("HEARTH_ADMIN_URL") or DEFAULT_URL
        return AdminClient(url, read_token(arguments, variables))
    if arguments.url is not None:
        raise InvalidValue("--url and --config name two gateways: give one of them")
    settings = check_file(Path(arguments.config), variables)
    if settings.admin_listen is None:
        raise InvalidValue(f"{arguments.config}: admin_listen is off, so that its findings cannot be read")
    host = settings.admin_listen.host
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    token = settings.admin_token.value if settings.admin_token else read_token(arguments, variables)
    return AdminClient(f"http://{host}:{settings.admin_listen.port}", token)


def _offline(file: Path) -> View:
    bundle = load_bundle(file)
    found = diagnose_bundle(bundle)
    if found is None:
        raise InvalidValue(f"{file}: contains no facts: it was saved before the first diagnosis")
    return show_diagnosis(found)


def load_bundle(file: Path) -> SupportBundle:
    """Read a support bundle. Raises `InvalidValue` and `InvalidBundle`."""
    try:
        with file.open("rb") as opened:
            body = opened.read(MAX_BUNDLE_BYTES + 1)
        if body.startswith(GZIP_MAGIC):
            with gzip.open(file, "rb") as packed:
                body = packed.read(MAX_BUNDLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidValue(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if len(body) > MAX_BUNDLE_BYTES:
        raise InvalidValue(f"{file}: more than {MAX_BUNDLE_BYTES} bytes")
    return read_bundle(body)


def _save_bundle(client: AdminClient, file: Path) -> int:
    body = msgspec.json.encode(client.get("/findings/bundle"))
    looks = len(read_bundle(body).looks)
    try:
        replace_file(file, gzip.compress(body, mtime=0))
    except OSError as error:
        raise InvalidValue(f"{file}: {error.strerror or error}") from None
    sys.stderr.write(f"{file}: {looks} looks; next: hearth doctor --bundle {file}\n")
    return HEALTHY


def _watch(arguments: Namespace, client: AdminClient) -> int:
    status, shown = HEALTHY, ""
    try:
        while True:
            view = client.get("/findings")
            text = json.dumps(view) + "\n" if arguments.json else format_findings(view)
            if text != shown:
                sys.stdout.write(text if arguments.json else f"--- {_clock(time.time())}\n{text}")
                sys.stdout.flush()
            status, shown = status_of(view), text
            Event().wait(LOOK_INTERVAL_S)
    except KeyboardInterrupt:
        return status


def _show(arguments: Namespace, view: View) -> int:
    sys.stdout.write(json.dumps(view, indent=2) + "\n" if arguments.json else format_findings(view))
    return status_of(view)


def status_of(view: View) -> int:
    """Return the exit status that a diagnosis means."""
    if any(finding["severity"] != Severity.ADVICE for finding in view["findings"]):
        return FOUND
    return UNKNOWN if not view["findings"] and view["first"]["question"] == Question.UNKNOWN else HEALTHY


# -- the baseline --------------------------------------------------------------------------------------------------


def _baseline(arguments: Namespace, client: AdminClient) -> int:
    if arguments.action == "save":
        saved = client.post("/baseline/save", {"reset": arguments.reset})
        if arguments.json:
            sys.stdout.write(json.dumps(saved, indent=2) + "\n")
        elif "error" not in saved:
            words = "{file}: {requests} requests in {hours} hours of the week, {figures} figures\n"
            sys.stdout.write(words.format(**{name: printable(value) for name, value in saved.items()}))
        if "error" in saved:
            sys.stderr.write(f"hearth: {printable(saved['error'])}\n")
        return FAILED if "error" in saved else HEALTHY
    bundle = read_bundle(msgspec.json.encode(client.get("/findings/bundle")))
    looks = facts_of(bundle)
    if not looks:
        raise InvalidValue("the gateway has not looked at its fleet yet")
    try:
        baseline = baseline_of(bundle) if arguments.file is None else read_baseline(Path(arguments.file))
    except (OSError, ValueError) as error:
        raise InvalidValue(f"--file {arguments.file}: {getattr(error, 'strerror', None) or error}") from None
    answer = first_answer(looks[-1], baseline)
    shown: dict[str, Any] = msgspec.to_builtins(answer)
    sys.stdout.write(json.dumps(shown, indent=2) + "\n" if arguments.json else "".join(_first_lines(shown)))
    return _compared(answer)


def _compared(answer: FirstAnswer) -> int:
    if answer.question is Question.NOTHING:
        return HEALTHY
    return UNKNOWN if answer.question is Question.UNKNOWN else FOUND


# -- text ----------------------------------------------------------------------------------------------------------


def format_findings(view: View) -> str:
    """Return a diagnosis as text: the first question, each finding in order, and what could not be checked."""
    lines = [*_first_lines(view["first"]), "\n"]
    if not view["findings"]:
        lines.append("No finding.\n")
    for number, finding in enumerate(view["findings"], 1):
        lines += _finding_lines(number, finding)
    gaps = view["gaps"]
    if gaps:
        lines.append(f"\nNot checked: {len(gaps)}\n")
        lines += [
            f"  {printable(gap['recipe'])}: {printable(gap['reason'])}{_of_pool(gap['pool'])}\n"
            for gap in gaps[:MAX_GAPS_SHOWN]
        ]
        if len(gaps) > MAX_GAPS_SHOWN:
            lines.append(f"  and {len(gaps) - MAX_GAPS_SHOWN} more (--json)\n")
    return "".join(lines)


def _first_lines(first: Mapping[str, Any]) -> Iterator[str]:
    yield f"First question: {first['question']} ({printable(first['reason'])})\n"
    if first["seconds"]:
        rows = ((phase, f"{now:.3f}", f"{before:.3f}") for phase, (now, before) in first["seconds"].items())
        yield format_table(("PHASE", "SECONDS NOW", "BASELINE"), rows)


def _finding_lines(number: int, finding: Mapping[str, Any]) -> Iterator[str]:
    cause = f", follows from {printable(finding['explained_by'])}" if finding["explained_by"] else ""
    yield (
        f"{number}. {finding['severity']}: {printable(finding['title'])} [{printable(finding['recipe'])}]"
        f"{_of_pool(finding['pool'])}, since {_clock(finding['since_s'])}, "
        f"confidence {finding['confidence']:.2f}{cause}\n"
    )
    rows: Iterable[tuple[str, str]] = (
        ("pods", ", ".join(map(str, finding["pods"]))),
        *(("evidence", describe(msgspec.convert(each, type=Evidence))) for each in finding["evidence"]),
        ("cause", finding["cause"]),
        ("first step", finding["first_step"]),
        ("it helped if", finding["helped"]),
        ("it is wrong if", finding["wrong_if"]),
    )
    yield from (f"   {name + ':':<16}{printable(text)}\n" for name, text in rows if text)


def _of_pool(pool: str) -> str:
    return f", pool {printable(pool)}" if pool else ""


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
