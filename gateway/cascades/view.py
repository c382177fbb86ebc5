"""Ladders as JSON values for the admin port: which rung answers and why, and how the promise stands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cascade.staying.keeping import TRIAL
from gateway.cascades.cascades import Ladders


def show_ladders(ladders: Ladders) -> list[dict[str, Any]]:
    """Return all ladders, by name; `standing` is null without a calibration, `unused` null where one is in use."""
    return [_show(ladders, name) for name in sorted(ladders.all)]


def _show(ladders: Ladders, name: str) -> dict[str, Any]:
    ladder, standing, silence = ladders.all[name], ladders.standing(name), ladders.silence(name)
    models = [rung.model for rung in ladder.rungs]
    shown: dict[str, Any] = {"ladder": name, "rungs": models, "unused": None, "standing": None}
    if silence is not None:
        shown["unused"] = {"message": silence.message, "effect": silence.effect, "fix": silence.fix}
    if standing is not None:
        told = asdict(standing)
        told["frozen"] = [model for model, is_frozen in zip(models, standing.frozen, strict=False) if is_frozen]
        told["raised"] = dict(zip(models, standing.raised, strict=False))
        told["frozen_asked"] = f"1 of {TRIAL}"
        shown["standing"] = told
    return shown
