"""The sections `roles` and `canaries`: roles that follow the traffic, and pods on trial; readers and JSON Schema.

The values are `routing.roles.RoleTerms` and `routing.canary.CanaryTerms`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.fields import NUMBER, read_switch, schema_of_fields
from routing.canary import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import Table, number, text, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, TEXT


def roles(root: Table) -> RoleTerms | None:
    """Read `roles: true` or a mapping. Returns None if absent or false: engines keep their roles."""
    section = read_switch(root, "roles")
    if isinstance(section, bool):
        return RoleTerms() if section else None
    usual = RoleTerms()
    found = {
        field.name: section.get(
            field.name, whole if field.name.startswith("least") else number, getattr(usual, field.name)
        )
        for field in fields(usual)
    }
    section.close()
    try:
        return RoleTerms(**found)
    except ValueError as wrong:
        root.fault("roles", str(wrong))
        return None


def canaries(root: Table) -> tuple[CanaryTerms, ...]:
    """Read the list `canaries`."""
    found = []
    for section in root.tables("canaries"):
        given: dict[str, Any] = {
            "name": section.need("name", text, ""),
            "pool": section.get("pool", text, None),
            "revision": section.get("revision", text, None),
            "share": section.get("share", number, 0.05),
            "ttft_gate": section.get("ttft_gate", number, 1.1),
            "tpot_gate": section.get("tpot_gate", number, 1.1),
            "error": section.get("error", number, 0.05),
            "least": section.get("least", whole, 200),
            "max_duration_s": section.get("max_duration_s", number, 86_400.0),
        }
        section.close()
        try:
            found.append(CanaryTerms(**given))
        except ValueError as wrong:
            section.blame(str(wrong))
    return tuple(found)


def roles_schema() -> Schema:
    return schema_of_fields(RoleTerms(), above_zero=False)


def canary_schema() -> Schema:
    return table(
        {
            "name": described(TEXT.schema, "What it is called in logs and metrics."),
            "pool": described(TEXT.schema, "The pool whose pods are on trial."),
            "revision": described(TEXT.schema, "The revision whose pods are on trial."),
            "share": described(NUMBER, "Of the requests that it could serve: 0.05."),
            "ttft_gate": described(NUMBER, "First tokens may take so many times as long: 1.1."),
            "tpot_gate": described(NUMBER, "Tokens may take so many times as long: 1.1."),
            "error": described(NUMBER, "The chance that a sound one is rolled back: 0.05."),
            "least": described(COUNT.schema, "Comparisons before it is accepted: 200."),
            "max_duration_s": described(NUMBER, "An undecided trial is rolled back after so many seconds: 86400."),
        },
        required=("name",),
    )
