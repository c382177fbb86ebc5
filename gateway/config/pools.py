"""The section `pools`: what an engine of each pool costs; value, reader and JSON Schema."""

from __future__ import annotations

from dataclasses import dataclass

from tenancy.document import DocumentTable, not_negative, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, TEXT


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One entry of `pools`. The price is in the operator's currency."""

    name: str
    """The pool as discovery names it; the model, where pods name none."""
    cost_per_engine_hour: float


def read_pools(root: DocumentTable) -> tuple[PoolEntry, ...]:
    """Read the list `pools`."""
    entries: dict[str, PoolEntry] = {}
    for section in root.tables("pools"):
        entry = PoolEntry(
            section.get_required("name", text, ""), section.get_required("cost_per_engine_hour", not_negative, 0.0)
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
            },
            required=("name", "cost_per_engine_hour"),
        ),
    }
