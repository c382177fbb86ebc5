"""Who asks, and what they may ask for. A value; knows nothing of keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer of the gateway. The anonymous tenant has no name."""

    name: str | None = None
    models: frozenset[str] | None = None
    """Names of the models it may use, None for all."""

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS = Tenant()
"""Everybody, where no policy tells callers apart."""
