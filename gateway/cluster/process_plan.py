"""Which processes some settings ask for. Decides; starts nothing."""

from __future__ import annotations

from gateway.config.settings import Settings


def needs_warmth(settings: Settings) -> bool:
    """Whether there is anybody to share warmth and ledger with, or an engine's own word to follow."""
    return settings.processes > 1 or settings.redis is not None or settings.kv_events is not None


def needs_supervisor(settings: Settings) -> bool:
    """Whether there will be more than one process."""
    return settings.processes > 1 or needs_warmth(settings)
