"""The section `pools`: what an engine of each pool costs, what it serves and where; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.fields import NUMBER_SCHEMA
from routing.facts import Role
from tenancy.document import DocumentTable, integer, not_negative, number, one_of, positive, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, AMOUNT, TEXT


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One entry of `pools`. The price is in the operator's currency."""

    name: str
    """The pool as discovery names it; the model, where pods name none."""
    cost_per_engine_hour: float
    model: str | None = None
    """The model that its pods serve: needed for a pool that may have no pod; None: as its pods report."""
    role: Role = Role.EITHER
    """Role of its engines while it has no pod."""
    start_s: float | None = None
    """Seconds from the request of an engine to its first served request, until it is learned; None: a default."""
    rank: int = 0
    """Pools of a lower rank are used first, whatever their price."""
    region: str = ""
    distance_s: float = 0.0
    """Round trip from the gateways, in seconds."""


def read_pools(root: DocumentTable) -> tuple[PoolEntry, ...]:
    """Read the list `pools`."""
    entries: dict[str, PoolEntry] = {}
    for section in root.tables("pools"):
        entry = PoolEntry(
            section.get_required("name", text, ""),
            section.get_required("cost_per_engine_hour", not_negative, 0.0),
            section.get("model", text, None),
            Role(section.get("role", one_of(tuple(Role)), Role.EITHER.value)),
            section.get("start_s", positive(number), None),
            section.get("rank", integer, 0),
            section.get("region", text, ""),
            section.get("distance_s", not_negative, 0.0),
        )
        section.close()
        if entry.name and entry.name in entries:
            section.error("name", f"duplicate entry `{entry.name}`")
        entries[entry.name] = entry
    return tuple(entries.values())


def pools_schema() -> Schema:
    """Return the JSON Schema of the list."""
    return {
        "type": "array",
        "items": table(
            {
                "name": described(TEXT.schema, "The pool as discovery names it."),
                "cost_per_engine_hour": described(AMOUNT.schema, "Money per hour of one engine, with all its GPUs."),
                "model": described(TEXT.schema, "Model of its pods, for a pool that may have no pod."),
                "role": described({"enum": list(Role)}, "Role of its engines while it has no pod (default either)."),
                "start_s": described(ABOVE_ZERO.schema, "Start-up seconds of an engine, until they are learned."),
                "rank": described(NUMBER_SCHEMA, "Pools of a lower rank are used first (default 0)."),
                "region": described(TEXT.schema, "Where it runs."),
                "distance_s": described(AMOUNT.schema, "Round trip from the gateways in seconds (default 0)."),
            },
            required=("name", "cost_per_engine_hour"),
        ),
    }
