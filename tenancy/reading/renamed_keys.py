"""Policy keys of earlier versions: the fault for each names the new key, and the unit where that changed."""

from __future__ import annotations

from collections.abc import Mapping

from tenancy.document import DocumentTable, InvalidValue

_MS_TO_S = ", a number of seconds: divide by 1000"

RENAMED_TIER_KEYS: Mapping[str, str] = {
    "ttft_ms": f"renamed to `ttft_s`{_MS_TO_S}",
    "ttft_cold_factor": "renamed to `ttft_uncached_factor`",
    "tpot_ms": f"renamed to `tpot_s`{_MS_TO_S}",
    "reserve": "renamed to `guaranteed_share`",
    "max_queue_ms": f"renamed to `max_queue_s`{_MS_TO_S}",
    "unattainable": "renamed to `on_unattainable`",
    "batch": "renamed to `best_effort`",
}
"""Of a tier: old key to the fault's text."""

RENAMED_TENANT_KEYS: Mapping[str, str] = {
    "min_rung": "renamed to `cascade_min_model`",
    "max_rung": "renamed to `cascade_max_model`",
    "never_escalate": "renamed to `cascade_never_escalate`",
    "max_escalation_share": "renamed to `cascade_max_escalation_share`",
    "prefer": "renamed to `cascade_prefer`",
    "hedge": "removed: requests are no longer hedged; delete this key",
}
"""Of a tenant and of `defaults`."""

RENAMED_API_KEY_KEYS: Mapping[str, str] = {"until": "renamed to `expires_at`"}
"""Of an API key, inline or in a key file."""


def reject_renamed(table: DocumentTable, renamed: Mapping[str, str]) -> None:
    """Add one fault to `table` for each key of an earlier version that it holds."""
    for key in table.keys:
        if key in renamed:
            table.reject_unknown(key, renamed[key])


def check_renamed(key: str, renamed: Mapping[str, str]) -> None:
    """Raise `InvalidValue` if `key` is one of an earlier version."""
    if key in renamed:
        raise InvalidValue(f"`{key}` was {renamed[key]}")
