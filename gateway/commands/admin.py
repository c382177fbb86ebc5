"""`hearth receipts|fleet|drain|reload`: what the admin port of a running gateway shows and does, as tables or as JSON.

The token is read from a flag, a file or the environment, and sent to the given URL alone: redirects are not followed,
proxies are not used. Text that clients have chosen is shown without control characters.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import IO, Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from tenancy.document import InvalidValue

DEFAULT_URL = "http://127.0.0.1:9091"

TIMEOUT_S = 30.0
"""For an answer of the admin port: a supervisor asks all its workers."""

POLL_S = 1.0
"""Between two looks at a pod that drains."""

RECEIPT_FILTERS = ("model", "tenant", "session", "pod", "status", "reason", "since", "until", "limit")

View = dict[str, Any]
"""A JSON object of the admin API."""


class NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the token is for one address."""

    def redirect_request(self, *_: object) -> None:
        """Return that there is no request to send instead."""


class AdminClient:
    """Talks to the admin port of one gateway."""

    def __init__(self, url: str, token: str | None, opener: OpenerDirector | None = None) -> None:
        """Raises `InvalidValue` for what is no URL of an admin port."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
            raise InvalidValue("--url must be the address of an admin port, such as http://127.0.0.1:9091")
        self._url = url.rstrip("/")
        self._token = token
        self._opener = opener or build_opener(ProxyHandler({}), NoRedirect())

    def get(self, path: str, query: Mapping[str, str] | None = None) -> View:
        """Return the JSON of a page. Raises `InvalidValue` with what the admin port answered."""
        target = f"{path}?{urlencode(query)}" if query else path
        return self._send(Request(f"{self._url}{target}"))  # noqa: S310 - the scheme is checked above

    def post(self, path: str, body: object = None) -> View:
        """Send a command and return its JSON. Raises `InvalidValue` with what the admin port answered."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return self._send(Request(f"{self._url}{path}", data, headers, method="POST"))  # noqa: S310 - as above

    def _send(self, request: Request) -> View:
        if self._token is not None:
            request.add_unredirected_header("authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return _object(answer)
        except HTTPError as error:
            with error:
                if error.code == HTTPStatus.UNPROCESSABLE_ENTITY:
                    return _object(error)
                self._raise(error)
        except (URLError, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise InvalidValue(f"{self._url}: {reason}; is the gateway's admin_listen there? (--url)") from None

    def _raise(self, error: HTTPError) -> NoReturn:
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise InvalidValue(
                f"{self._url} rejects the token: set --token-file or HEARTH_ADMIN_TOKEN to admin_token of the gateway"
            )
        try:
            words = str(_object(error).get("error"))
        except InvalidValue:
            words = error.reason
        raise InvalidValue(f"{self._url}: {error.code} {printable(words)}")


def _object(answer: IO[bytes]) -> View:
    try:
        found = json.loads(answer.read())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidValue("the response is not a JSON object: is --url the address of an admin port?")
    return found


# -- flags ---------------------------------------------------------------------------------------------------------


def add_place_flags(parser: ArgumentParser) -> None:
    """Add the flags of every command that shows what the admin port answers."""
    add_connection_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the JSON of the admin API")


def add_connection_flags(parser: ArgumentParser) -> None:
    """Add the flags of every command that talks to the admin port."""
    parser.add_argument("--url", metavar="URL", help=f"admin port [HEARTH_ADMIN_URL] (default {DEFAULT_URL})")
    parser.add_argument("--token", metavar="TOKEN", help="admin token; other users see it in ps [HEARTH_ADMIN_TOKEN]")
    parser.add_argument("--token-file", metavar="FILE", help="file that contains it [HEARTH_ADMIN_TOKEN_FILE]")


def add_receipts_flags(parser: ArgumentParser) -> None:
    """Add the flags of `hearth receipts`."""
    parser.add_argument("id", metavar="ID", nargs="?", help="id of the gateway, or the client's own x-request-id")
    shown = {
        "model": "as sent upstream, as the client named it (alias, cascade), or any model of its cascade",
        "tenant": "tenant",
        "session": "session",
        "pod": "URL of a pod that was tried",
        "status": "status of the response",
        "reason": "why it was rejected (docs/reasons.md)",
        "since": "ended at or after: Unix seconds, or 2026-11-27T08:00:00Z",
        "until": "ended at or before",
        "limit": "how many (default 20, at most 1000)",
    }
    for name in RECEIPT_FILTERS:
        parser.add_argument(f"--{name}", metavar=name.upper(), help=shown[name])
    add_place_flags(parser)


def add_fleet_flags(parser: ArgumentParser) -> None:
    """Add the flags of `hearth fleet`."""
    add_place_flags(parser)


def add_drain_flags(parser: ArgumentParser) -> None:
    """Add the flags of `hearth drain`."""
    parser.add_argument("pod", metavar="POD_URL", help="pod, as `hearth fleet` lists it")
    parser.add_argument("--undo", action="store_true", help="send it requests again")
    parser.add_argument("--wait", metavar="SECONDS", type=float, help="wait so long until no request runs there")
    add_place_flags(parser)


def add_reload_flags(parser: ArgumentParser) -> None:
    """Add the flags of `hearth reload`."""
    add_place_flags(parser)


# -- commands ------------------------------------------------------------------------------------------------------


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run a command. Returns 0 on success; 1 where the gateway rejects it, or a pod did not drain in time."""
    try:
        client = AdminClient(
            arguments.url or variables.get("HEARTH_ADMIN_URL") or DEFAULT_URL, read_token(arguments, variables)
        )
        match arguments.command:
            case "receipts":
                return _receipts(arguments, client)
            case "fleet":
                return _shown(arguments, client.get("/fleet"), format_fleet)
            case "drain":
                return _drain(arguments, client)
            case _:
                return _reload(arguments, client)
    except InvalidValue as fault:
        sys.stderr.write(f"hearth: {fault}\n")
        return 1


def read_token(arguments: Namespace, variables: Mapping[str, str]) -> str | None:
    """Return the admin token, None where there is none. Raises `InvalidValue` for a file that cannot be read."""
    if arguments.token:
        return str(arguments.token)
    file = arguments.token_file or (
        None if variables.get("HEARTH_ADMIN_TOKEN") else variables.get("HEARTH_ADMIN_TOKEN_FILE")
    )
    if file is None:
        return variables.get("HEARTH_ADMIN_TOKEN") or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"--token-file {file}: {getattr(error, 'strerror', None) or 'is not text'}") from None


def _shown(arguments: Namespace, view: View, as_text: Callable[[View], str]) -> int:
    sys.stdout.write(json.dumps(view, indent=2) + "\n" if arguments.json else as_text(view))
    return 0


def _receipts(arguments: Namespace, client: AdminClient) -> int:
    if arguments.id is not None:
        return _shown(arguments, client.get(f"/receipts/{quote(arguments.id, safe='')}"), format_receipt)
    query = {name: value for name in RECEIPT_FILTERS if (value := getattr(arguments, name)) is not None}
    return _shown(arguments, client.get("/receipts", query), format_receipts)


def _drain(arguments: Namespace, client: AdminClient) -> int:
    path = "/pods/undrain" if arguments.undo else "/pods/drain"
    view = client.post(path, {"pod": arguments.pod})
    if arguments.wait is not None and not arguments.undo:
        until_s = time.monotonic() + arguments.wait
        while view["running"] and time.monotonic() < until_s:
            Event().wait(POLL_S)
            view = client.post(path, {"pod": arguments.pod})
    _shown(arguments, view, lambda view: f"{printable(view['pod'])}: {view['state']}, {view['running']} running\n")
    return 1 if arguments.wait is not None and not arguments.undo and view["running"] else 0


def _reload(arguments: Namespace, client: AdminClient) -> int:
    view = client.post("/reload")
    _shown(arguments, view, format_reload)
    return 0 if view.get("reloaded") else 1


# -- tables --------------------------------------------------------------------------------------------------------


def printable(value: object) -> str:
    """Return text without control characters, so that a name from a client cannot steer a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(value))


def format_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return aligned columns; None is shown as `-`."""
    cells = [list(head), *(["-" if cell is None else printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in cells
    )


RECEIPT_HEAD = (
    "ENDED",
    "ID",
    "TENANT",
    "MODEL",
    "STATUS",
    "REASON",
    "POD",
    "TRIES",
    "TTFT",
    "SECONDS",
    "IN",
    "CACHED",
    "OUT",
)


def format_receipts(view: View) -> str:
    """Return a table of receipts, latest first."""
    return format_table(RECEIPT_HEAD, map(_receipt_row, view["receipts"]))


def _receipt_row(receipt: View) -> tuple[object, ...]:
    usage, attempts = receipt["usage"] or {}, receipt["attempts"]
    return (
        datetime.fromtimestamp(receipt["at_s"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        receipt["id"],
        receipt["tenant"],
        receipt["model"],
        receipt["status"],
        receipt["reason"],
        attempts[-1]["engine"] if attempts else None,
        len(attempts),
        receipt["ttft_s"],
        receipt["duration_s"],
        *(usage.get(name) for name in ("input_tokens", "cached_input_tokens", "output_tokens")),
    )


def format_receipt(receipt: View) -> str:
    """Return one receipt: its facts, then each attempt with its candidates, the chosen first."""
    plain = {name: value for name, value in receipt.items() if not isinstance(value, list | dict) and value is not None}
    lines = [f"{name:<20} {printable(value)}\n" for name, value in plain.items() if value != ""]
    for at, attempt in enumerate(receipt["attempts"], 1):
        lines.append(
            f"\nattempt {at}: {printable(attempt['engine'])}, {attempt['kind']}, {attempt['result']}; "
            f"first token {attempt['actual_ttft_s']} s, predicted {attempt['predicted_ttft_s']} s\n"
        )
        lines.append(
            format_table(("CANDIDATE", "SECONDS", "CACHED", "BY SCORER"), map(_candidate, attempt["candidates"]))
        )
    return "".join(lines)


def _candidate(shown: View) -> tuple[object, ...]:
    scores = sorted(shown["scores_s"].items(), key=lambda score: -abs(score[1]))
    return (
        shown["engine"],
        round(shown["total_s"], 6),
        shown["cached_input_tokens"],
        ", ".join(f"{name} {seconds:.6f}" for name, seconds in scores),
    )


FLEET_HEAD = ("POD", "POOL", "ROLE", "STATE", "MODELS", "RUNNING", "WAITING", "BREAKER", "LAST ERROR")


def format_fleet(view: View) -> str:
    """Return a table of pods with the load of all gateways."""
    return format_table(FLEET_HEAD, map(_pod_row, view["pods"]))


def _pod_row(pod: View) -> tuple[object, ...]:
    engines = pod["engines"]
    running = sum(engine[load]["running"] for engine in engines for load in ("own_load", "peer_load", "external_load"))
    return (
        pod["url"],
        pod["pool"],
        "/".join(sorted({engine["role"] for engine in engines})) or None,
        pod["state"],
        ",".join(pod["models"]) or None,
        round(running),
        round(sum(engine["external_load"]["waiting"] for engine in engines)),
        pod["breaker"]["state"],
        pod["last_error"],
    )


def format_reload(view: View) -> str:
    """Return what a reload has applied, or why it has not."""
    if not view.get("reloaded"):
        return "".join(f"not reloaded: {printable(fault)}\n" for fault in view.get("errors", ()))
    restart = ", ".join(view.get("needs_restart", ()))
    return f"reloaded; a restart is needed for: {restart}\n" if restart else "reloaded\n"
