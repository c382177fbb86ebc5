"""The sections `roles` and `canaries`: roles that follow the traffic, and pods on trial; readers and JSON Schema.

The values are `routing.pairing.roles.RoleTerms` and `routing.canary.verdict.CanaryTerms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gateway.config.fields import NUMBER_SCHEMA, parse_writable_path, read_switch, schema_of_fields
from routing.canary.change import CanaryKind
from routing.canary.verdict import CanaryTerms
from routing.pairing.roles import RoleTerms
from tenancy.document import DocumentTable, Parse, flag, integer, number, one_of, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, TEXT


def read_roles(root: DocumentTable) -> RoleTerms | None:
    """Read `roles: true` or a mapping. Returns None if absent or false: engines keep their roles."""
    section = read_switch(root, "roles")
    if isinstance(section, bool):
        return RoleTerms() if section else None
    defaults = RoleTerms()
    found = {
        field.name: section.get(
            field.name, integer if field.name.endswith("_engines") else number, getattr(defaults, field.name)
        )
        for field in fields(defaults)
    }
    section.close()
    try:
        return RoleTerms(**found)
    except ValueError as wrong:
        root.error("roles", str(wrong))
        return None


@dataclass(frozen=True, slots=True)
class CanaryConfig(CanaryTerms):
    """One entry of the list `canaries`."""

    state_file: Path | None = None
    """File in which verdicts are kept without Redis; None: they are lost with the process."""


def read_canaries(root: DocumentTable) -> tuple[CanaryConfig, ...]:
    """Read the list `canaries`. A second one is rejected."""
    found = []
    for section in root.tables("canaries"):
        word = section.get("kind", one_of(tuple(CanaryKind)), None)
        given: dict[str, Any] = {"name": section.get_required("name", text, "")}
        given |= {key: section.get(key, read, _DEFAULTS[key]) for key, (read, _, _) in _KEYS.items() if key != "kind"}
        file = section.get("state_file", parse_writable_path, None)
        section.close()
        try:
            kind = None if word is None else CanaryKind(word)
            found.append(CanaryConfig(**given, kind=kind, state_file=file))
        except ValueError as wrong:
            section.add_error(str(wrong))
    for at, terms in enumerate(found[1:], 1):
        words = f"`{terms.name}`: a second canary is rejected while `{found[0].name}` is configured"
        root.error(f"canaries[{at}]", f"{words}: one change at a time; remove that one when it has ended")
    return tuple(found)


_KEYS: Mapping[str, tuple[Parse[Any], Schema, str]] = {
    "pool": (text, TEXT.schema, "Pool whose pods are on trial."),
    "revision": (text, TEXT.schema, "Revision whose pods are on trial."),
    "kind": (
        text,
        {"enum": list(CanaryKind)},
        "release, or configuration: one scheduler parameter is changed, else it is rejected; absent: as builds differ.",
    ),
    "traffic_share": (number, NUMBER_SCHEMA, "Share of the requests that it could serve (default 0.05)."),
    "max_ttft_ratio": (number, NUMBER_SCHEMA, "Maximum TTFT relative to that of the other pods (default 1.1)."),
    "max_tpot_ratio": (number, NUMBER_SCHEMA, "Maximum TPOT relative to that of the other pods (default 1.1)."),
    "max_error_increase": (
        number,
        NUMBER_SCHEMA,
        "By which its share of failed attempts may be higher than that of the other pods (default 0.02).",
    ),
    "max_quality_loss": (
        number,
        NUMBER_SCHEMA,
        "By which its share of worse answers may exceed that of better ones (default 0.02).",
    ),
    "false_revert_rate": (
        number,
        NUMBER_SCHEMA,
        "Probability that a canary within these limits is reverted (default 0.05).",
    ),
    "min_comparisons": (integer, COUNT.schema, "Comparisons before it is promoted (default 200)."),
    "max_duration_s": (number, NUMBER_SCHEMA, "Seconds after which an undecided trial is reverted (default 86400)."),
    "pairs_with_revision": (
        text,
        TEXT.schema,
        "Revision whose weights its pods hold too, so that they exchange KV with pods of that revision.",
    ),
    "lower_precision": (
        flag,
        FLAG.schema,
        "Whether answers have to be compared before it is promoted; absent: as its command line shows.",
    ),
    "quality_share": (
        number,
        NUMBER_SCHEMA,
        "Share of the requests of tenants with canary_compare whose answers are compared (default 0.02).",
    ),
    "quality_tokens_per_hour": (
        number,
        NUMBER_SCHEMA,
        "Tokens that comparisons of answers may take, of each gateway process (default 1000000).",
    ),
    "judge_model": (text, TEXT.schema, "Model that compares answers. Absent: they are compared as text."),
    "one_tenant_decides": (
        flag,
        FLAG.schema,
        "Whether the requests of one tenant are enough for a verdict (default false; true where there is only one).",
    ),
}
"""Keys of a canary but its name: reader, JSON Schema and text."""

_DEFAULTS = {field.name: field.default for field in fields(CanaryTerms)}


def roles_schema() -> Schema:
    return schema_of_fields(RoleTerms(), above_zero=False)


def canary_schema() -> Schema:
    return table(
        {
            "name": described(TEXT.schema, "Name in logs, metrics and the verdict that is kept of it."),
            **{key: described(schema, words) for key, (_, schema, words) in _KEYS.items()},
            "state_file": described(TEXT.schema, "File in which verdicts are kept without Redis; absent: not kept."),
        },
        required=("name",),
    )
