"""`hearth keys new|rotate|revoke|list`: the folder of keys that a policy names.

A key is shown once, alone on standard output, so that it can be piped to where it belongs; all else is said beside.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from gateway.identity.key_folder import KeyFolder
from tenancy.document import Invalid, Wrong, read_document, text
from tenancy.reading.kinds import duration, name


def add_flags(parser: ArgumentParser) -> None:
    """What the command line may say."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    where = ArgumentParser(add_help=False)
    where.add_argument("--dir", metavar="FOLDER", help="the folder of keys; else that of the policy")
    where.add_argument("--policy", metavar="FILE", help="the policy that names the folder (default $HEARTH_POLICY)")
    new = actions.add_parser("new", parents=[where], help="make a key and print it, once")
    new.add_argument("tenant", metavar="TENANT")
    new.add_argument("--id", metavar="ID", help="what it is called in logs (default: drawn)")
    new.add_argument("--user", metavar="NAME", help="the user who will show it")
    new.add_argument("--group", metavar="NAME", help="the group of whoever shows it")
    new.add_argument("--for", dest="lasting", metavar="TIME", help="ends after, as in 90d (default: when revoked)")
    rotate = actions.add_parser("rotate", parents=[where], help="make another key in place of one, and print it, once")
    rotate.add_argument("--keep", metavar="TIME", help="the old one ends after, as in 7d (default: when revoked)")
    revoke = actions.add_parser("revoke", parents=[where], help="end a key now")
    for action in (rotate, revoke):
        action.add_argument("tenant", metavar="TENANT")
        action.add_argument("id", metavar="ID")
    shown = actions.add_parser("list", parents=[where], help="whose keys there are, and until when")
    shown.add_argument("tenant", metavar="TENANT", nargs="?")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """The exit status: 0 done, 1 it could not be done."""
    try:
        folder = KeyFolder(_folder(arguments, variables))
        match arguments.action:
            case "new":
                until_s = time.time() + duration(arguments.lasting) if arguments.lasting else inf
                said = {"user": arguments.user, "group": arguments.group, "until_s": until_s}
                _show(arguments.tenant, *folder.add(arguments.tenant, arguments.id, **said))
            case "rotate":
                _rotate(folder, arguments)
            case "revoke":
                folder.remove(arguments.tenant, arguments.id)
                _say(f"{arguments.tenant}/{arguments.id} is revoked")
            case _:
                _list(folder, arguments.tenant)
    except (Wrong, OSError) as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    return 0


def _rotate(folder: KeyFolder, arguments: Namespace) -> None:
    tenant, old = arguments.tenant, folder.find(arguments.tenant, arguments.id)
    if old.fault:
        raise Wrong(f"{tenant}/{old.key_id} {old.fault}")
    keep_s = duration(arguments.keep) if arguments.keep else None
    _show(tenant, *folder.add(tenant, user=old.user, group=old.group))
    if keep_s is None:
        _say(f"{tenant}/{old.key_id} stays good until: hearth keys revoke {tenant} {old.key_id}")
    else:
        _say(f"{tenant}/{old.key_id} is good until {_moment(folder.end(tenant, old.key_id, time.time() + keep_s))}")


def _list(folder: KeyFolder, tenant: str | None) -> None:
    rows = [("TENANT", "ID", "GROUP", "USER", "UNTIL")]
    for entry in folder.entries():
        if tenant in (None, entry.tenant):
            until = entry.fault or _moment(entry.until_s)
            rows.append((entry.tenant, entry.key_id, entry.group or "-", entry.user or "-", until))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def _moment(at_s: float) -> str:
    if at_s == inf:
        return "revoked"
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}{' (ended)' if at_s <= time.time() else ''}"


def _show(tenant: str, key_id: str, key: str) -> None:
    sys.stdout.write(f"{key}\n")
    _say(f"this is {tenant}/{key_id}; it is shown this once and kept nowhere")


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def _folder(arguments: Namespace, variables: Mapping[str, str]) -> Path:
    """Where keys are. Raises `Wrong`."""
    if arguments.dir:
        return Path(arguments.dir)
    policy = arguments.policy or variables.get("HEARTH_POLICY")
    if not policy:
        raise Wrong("which folder? Say --dir FOLDER, --policy FILE or HEARTH_POLICY")
    try:
        root = read_document(Path(policy).read_text(encoding="utf-8"), variables)
    except Invalid as invalid:
        raise Wrong(f"{policy}: {invalid}") from None
    auth, tenants = root.table("auth"), root.table("tenants")
    folder = auth.get("keys_dir", text, "") if auth is not None else ""
    if not folder:
        raise Wrong(f"{policy} names no auth.keys_dir: say --dir FOLDER")
    if arguments.action == "new" and tenants is not None and name(arguments.tenant) not in tenants.keys:
        raise Wrong(f"`{arguments.tenant}` is no tenant of {policy}")
    return Path(folder)
