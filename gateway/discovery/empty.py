"""Sources that answer and find no pods, each reported once with what to check. Decides; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping

FIXES: Mapping[str, str] = {
    "dns": "the name has no records: check name, port (without one SRV records are asked for) and search domain; "
    "a headless Kubernetes service lists ready pods only",
    "kubernetes": "nothing matches: check namespace, selector, service or inference_pools",
    "redis": "no agent has registered a pod there: check that `hearth agent` runs beside the engines, and its Redis",
    "file": "the file lists no pods",
}
"""By the kind of a source: its name up to the first colon."""

USUAL_FIX = "check what it is asked for"


class EmptySources:
    """Those that found nothing when they answered last."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def fix_for(self, name: str, *, is_empty: bool) -> str:
        """What to check where a source has just come to find nothing; empty where that is no news."""
        if not is_empty:
            self._names.discard(name)
            return ""
        if name in self._names:
            return ""
        self._names.add(name)
        return FIXES.get(name.partition(":")[0], USUAL_FIX)
