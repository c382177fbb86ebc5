"""The sections `roles` and `canaries`: roles that follow the traffic, and pods on trial; readers and JSON Schema.

The values are `routing.roles.RoleTerms` and `routing.canary.CanaryTerms`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.fields import NUMBER_SCHEMA, read_switch, schema_of_fields
from routing.canary import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import DocumentTable, number, text, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, TEXT


def read_roles(root: DocumentTable) -> RoleTerms | None:
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
        root.error("roles", str(wrong))
        return None


def read_canaries(root: DocumentTable) -> tuple[CanaryTerms, ...]:
    """Read the list `canaries`."""
    found = []
    for section in root.tables("canaries"):
        given: dict[str, Any] = {
            "name": section.get_required("name", text, ""),
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
            section.add_error(str(wrong))
    return tuple(found)


def roles_schema() -> Schema:
    return schema_of_fields(RoleTerms(), above_zero=False)


def canary_schema() -> Schema:
    return table(
        {
            "name": described(TEXT.schema, "What it is called in logs and metrics."),
            "pool": described(TEXT.schema, "The pool whose pods are on trial."),
            "revision": described(TEXT.schema, "The revision whose pods are on trial."),
            "share": described(NUMBER_SCHEMA, "Of the requests that it could serve: 0.05."),
            "ttft_gate": described(NUMBER_SCHEMA, "First tokens may take so many times as long: 1.1."),
            "tpot_gate": described(NUMBER_SCHEMA, "Tokens may take so many times as long: 1.1."),
            "error": described(NUMBER_SCHEMA, "The chance that a sound one is rolled back: 0.05."),
            "least": described(COUNT.schema, "Comparisons before it is accepted: 200."),
            "max_duration_s": described(
                NUMBER_SCHEMA, "An undecided trial is rolled back after so many seconds: 86400."
            ),
        },
        required=("name",),
    )
