"""Words of the configuration about how engines are used: roles that follow the traffic, and canaries.

`roles: true`, or a mapping of what the split is held to; `canaries:` a list, in the order of their turns.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from routing.canary import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import Table, flag, number, text, whole


def roles(root: Table) -> RoleTerms | None:
    """`roles: true`, or a mapping of what is to be otherwise; absent or false: engines keep their roles."""
    if not root.get("roles", lambda value: isinstance(value, dict) or flag(value), default=False):
        return None
    table = None
    if not root.get("roles", lambda value: value is True, default=False):
        table = root.table("roles")
    if table is None:
        return RoleTerms()
    usual = RoleTerms()
    found = {
        field.name: table.get(
            field.name, whole if field.name.startswith("least") else number, getattr(usual, field.name)
        )
        for field in fields(usual)
    }
    table.close()
    try:
        return RoleTerms(**found)
    except ValueError as wrong:
        root.fault("roles", str(wrong))
        return None


def canaries(root: Table) -> tuple[CanaryTerms, ...]:
    """The list `canaries`."""
    found = []
    for table in root.tables("canaries"):
        given: dict[str, Any] = {
            "name": table.need("name", text, ""),
            "pool": table.get("pool", text, None),
            "revision": table.get("revision", text, None),
            "share": table.get("share", number, 0.05),
            "ttft_gate": table.get("ttft_gate", number, 1.1),
            "tpot_gate": table.get("tpot_gate", number, 1.1),
            "error": table.get("error", number, 0.05),
            "least": table.get("least", whole, 200),
            "max_duration_s": table.get("max_duration_s", number, 86_400.0),
        }
        table.close()
        try:
            found.append(CanaryTerms(**given))
        except ValueError as wrong:
            table.blame(str(wrong))
    return tuple(found)
