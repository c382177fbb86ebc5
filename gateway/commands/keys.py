"""`hearth keys new|rotate|revoke|list`: the folder of keys that a policy names.

A key is shown once, alone on standard output, so that it can be piped to where it belongs; all else is said beside.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TypeVar

from gateway.commands.admin import format_table
from gateway.config.loading import POLICY_FILE_KEYS, relative_to
from gateway.identity.key_folder import KeyFolder
from tenancy.document import DocumentTable, InvalidDocument, InvalidValue, read_document, text
from tenancy.reading.fields import duration, name

T = TypeVar("T")


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    where = ArgumentParser(add_help=False)
    where.add_argument("--dir", metavar="FOLDER", help="key folder (default: that of the policy)")
    where.add_argument("--policy", metavar="FILE", help="policy that names the key folder (default $HEARTH_POLICY)")
    new = actions.add_parser("new", parents=[where], help="create a key and print it once")
    new.add_argument("tenant", metavar="TENANT")
    new.add_argument("--id", metavar="ID", help="key ID in logs (default: random)")
    new.add_argument("--user", metavar="NAME", help="user that the key authenticates")
    new.add_argument("--group", metavar="NAME", help="group that the key authenticates")
    new.add_argument("--expires-in", metavar="TIME", help="expiry, such as 90d (default: never)")
    rotate = actions.add_parser("rotate", parents=[where], help="create a replacement for a key and print it once")
    rotate.add_argument("--grace-period", metavar="TIME", help="expiry of the old key, such as 7d (default: never)")
    revoke = actions.add_parser("revoke", parents=[where], help="revoke a key now")
    for action in (rotate, revoke):
        action.add_argument("tenant", metavar="TENANT")
        action.add_argument("id", metavar="ID")
    shown = actions.add_parser("list", parents=[where], help="list keys with their tenants and expiry")
    shown.add_argument("tenant", metavar="TENANT", nargs="?")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the action. Returns the exit status: 0 on success, else 1."""
    try:
        known = _known(arguments, variables)
        folder = KeyFolder(known.folder)
        match arguments.action:
            case "new":
                lifetime_s = _flag("--expires-in", duration, arguments.expires_in)
                _flag("TENANT", name, arguments.tenant)
                _flag("--id", name, arguments.id)
                known.check(arguments.tenant, arguments.group)
                until_s = inf if lifetime_s is None else time.time() + lifetime_s
                key_fields = {"user": arguments.user, "group": arguments.group, "until_s": until_s}
                _show(arguments.tenant, *folder.add(arguments.tenant, arguments.id, **key_fields))
            case "rotate":
                _rotate(folder, known, arguments)
            case "revoke":
                folder.remove(arguments.tenant, arguments.id)
                _log_event(f"{arguments.tenant}/{arguments.id} is revoked")
            case _:
                _list(folder, arguments.tenant)
    except (InvalidValue, OSError) as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    return 0


def _flag(flag: str, parse: Callable[[object], T], given: str | None) -> T | None:
    """Return the value of a flag, None if it is absent. Raises `InvalidValue` with the flag's name before the fault."""
    try:
        return None if given is None else parse(given)
    except InvalidValue as wrong:
        raise InvalidValue(f"{flag} {given}: {wrong}") from None


def _rotate(folder: KeyFolder, known: _Known, arguments: Namespace) -> None:
    tenant, old = arguments.tenant, folder.find(arguments.tenant, arguments.id)
    if old.fault:
        raise InvalidValue(f"{tenant}/{old.key_id} {old.fault}")
    grace_s = _flag("--grace-period", duration, arguments.grace_period)
    known.check(tenant, old.group)
    _show(tenant, *folder.add(tenant, user=old.user, group=old.group, limits=old.limits))
    if grace_s is None:
        _log_event(f"{tenant}/{old.key_id} stays valid until you run: hearth keys revoke {tenant} {old.key_id}")
    else:
        _log_event(
            f"{tenant}/{old.key_id} expires at {_moment(folder.expire(tenant, old.key_id, time.time() + grace_s))}"
        )


def _list(folder: KeyFolder, tenant: str | None) -> None:
    rows = list[tuple[str, ...]]()
    for entry in folder.entries():
        if tenant in (None, entry.tenant):
            until = entry.fault or _moment(entry.until_s)
            rows.append((entry.tenant, entry.key_id, entry.group or "-", entry.user or "-", until))
    sys.stdout.write(format_table(("TENANT", "ID", "GROUP", "USER", "UNTIL"), rows))


def _moment(at_s: float) -> str:
    if at_s == inf:
        return "never"
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}{' (ended)' if at_s <= time.time() else ''}"


def _show(tenant: str, key_id: str, key: str) -> None:
    sys.stdout.write(f"{key}\n")
    _log_event(f"key {tenant}/{key_id}: shown only once, it is not stored")


def _log_event(words: str) -> None:
    sys.stderr.write(f"{words}\n")


@dataclass(frozen=True, slots=True)
class _Known:
    """The key folder, and the tenants that the policy allows."""

    folder: Path
    policy: str | None = None
    """Path of the policy; None if only the folder is known, and tenants cannot be checked."""
    tenants: DocumentTable | None = None
    """None: the policy lists no tenants, and every key defines its own."""
    defaults: DocumentTable | None = None

    def check(self, tenant: str, group: str | None) -> None:
        """Raise `InvalidValue` for a tenant or group that the policy lacks: the gateway would not start with such a
        key.
        """
        if self.policy is None:
            if group is not None:
                _log_event(
                    f"no policy was named: unless `{tenant}` has a group `{group}`, its gateway rejects this key file"
                )
            return
        if self.tenants is not None and tenant not in self.tenants.keys:
            raise InvalidValue(f"unknown tenant `{tenant}` in {self.policy}")
        if group is None:
            return
        own = self.tenants.table(tenant) if self.tenants is not None else None
        given = next((held for held in (own, self.defaults) if held is not None and "groups" in held), None)
        groups = given.table("groups") if given is not None else None
        names = groups.keys if groups is not None else ()
        if group not in names:
            there = f"there are {', '.join(names)}" if names else "it has none"
            raise InvalidValue(
                f"--group {group}: unknown group `{group}` of tenant `{tenant}` in {self.policy} ({there})"
            )


def _known(arguments: Namespace, variables: Mapping[str, str]) -> _Known:
    """Return the key folder and the tenants. Raises `InvalidValue`."""
    policy = arguments.policy or variables.get("HEARTH_POLICY")
    if arguments.dir and (not policy or arguments.action not in ("new", "rotate")):
        return _Known(Path(arguments.dir))
    if not policy:
        raise InvalidValue("no key folder: pass --dir or --policy, or set HEARTH_POLICY")
    try:
        source = Path(policy).read_text(encoding="utf-8")
        root = read_document(source, variables, relative_to(Path(policy), POLICY_FILE_KEYS))
    except (InvalidDocument, UnicodeDecodeError) as invalid:
        raise InvalidValue(f"{policy}: {invalid}") from None
    auth = root.table("auth")
    folder = arguments.dir or (auth.get("keys_dir", text, "") if auth is not None else "")
    if not folder:
        raise InvalidValue(f"{policy} has no auth.keys_dir: pass --dir")
    return _Known(Path(folder), policy, root.table("tenants"), root.table("defaults"))
