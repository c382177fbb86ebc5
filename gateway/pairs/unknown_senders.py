"""Connectors that others bring: installed packages name them under the entry point `hearth.connectors`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from routing.connectors.registry import CONNECTORS
from routing.connectors.shape import Connector

GROUP = "hearth.connectors"


def known_connectors(say: Callable[..., None]) -> tuple[Connector, ...]:
    """Ours, and behind them strangers' that can be loaded. An entry point names a `Connector`, or what makes one."""
    strangers = []
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
            strangers.append(loaded() if isinstance(loaded, type) else loaded)
        except Exception as error:  # noqa: BLE001 - somebody else's code must not keep us from starting
            say("error", "a connector could not be loaded", connector=entry.name, error=repr(error))
    return (*CONNECTORS, *strangers)
