"""The settings as JSON values for people to look at. Secrets stay hidden, and what its value does not show either."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from gateway.config.secret import Secret
from gateway.config.values import Routing, Settings
from gateway.runtime.addresses import Address


def show_settings(settings: Settings) -> dict[str, object]:
    """Every field by name."""
    return {field.name: _shown(getattr(settings, field.name)) for field in fields(settings)}


def _shown(value: Any) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case Secret() | Address():
            return str(value)
        case Routing():
            return {"name": value.name, "scorers": {scorer.name: _shown(scorer) for scorer in value.scorers}}
        case tuple():
            return [_shown(held) for held in value]
        case _ if is_dataclass(value):
            return {field.name: _shown(getattr(value, field.name)) for field in fields(value) if field.repr}
        case _:
            return str(value)
