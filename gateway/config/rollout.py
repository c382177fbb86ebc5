"""The sections `roles` and `canaries`: roles that follow the traffic, and pods on trial; readers and JSON Schema.

The values are `routing.roles.RoleTerms` and `routing.canary.CanaryTerms`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.fields import NUMBER_SCHEMA, read_switch, schema_of_fields
from routing.canary import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import DocumentTable, integer, number, text
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
            field.name, integer if field.name.endswith("_engines") else number, getattr(usual, field.name)
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
            "traffic_share": section.get("traffic_share", number, 0.05),
            "max_ttft_ratio": section.get("max_ttft_ratio", number, 1.1),
            "max_tpot_ratio": section.get("max_tpot_ratio", number, 1.1),
            "false_rollback_rate": section.get("false_rollback_rate", number, 0.05),
            "min_comparisons": section.get("min_comparisons", integer, 200),
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
            "name": described(TEXT.schema, "Name in logs and metrics."),
            "pool": described(TEXT.schema, "Pool whose pods are on trial."),
            "revision": described(TEXT.schema, "Revision whose pods are on trial."),
            "traffic_share": described(NUMBER_SCHEMA, "Share of the requests that it could serve (default 0.05)."),
            "max_ttft_ratio": described(
                NUMBER_SCHEMA, "Maximum TTFT relative to that of the other pods (default 1.1)."
            ),
            "max_tpot_ratio": described(
                NUMBER_SCHEMA, "Maximum TPOT relative to that of the other pods (default 1.1)."
            ),
            "false_rollback_rate": described(
                NUMBER_SCHEMA, "Probability that a canary within these ratios is rolled back (default 0.05)."
            ),
            "min_comparisons": described(COUNT.schema, "Comparisons before it is accepted (default 200)."),
            "max_duration_s": described(
                NUMBER_SCHEMA, "Seconds after which an undecided trial is rolled back (default 86400)."
            ),
        },
        required=("name",),
    )
