"""`docs/public-names.json` is complete: each old public name leads to one that exists, and no renamed one remains."""

from __future__ import annotations

import json
from typing import Any

from tests.sources import ROOT

NAMES: dict[str, Any] = json.loads((ROOT / "docs/public-names.json").read_text(encoding="utf-8"))
"""Section to old name to new name; None: deleted."""

SECTIONS = {
    "metrics",
    "labels",
    "config",
    "policy",
    "flags",
    "headers",
    "reasons",
    "log_fields",
    "usage_fields",
    "receipt_fields",
    "admin_fields",
}


def test_the_map_has_its_sections() -> None:
    """One per kind of public name, and the names that are new."""
    assert set(NAMES) == SECTIONS | {"schema", "units", "added"}
    assert set(NAMES["added"]) == SECTIONS


# metrics and labels

# config and flags

# policy, reasons and headers

# log, usage, receipt and admin fields
