"""Makes ladders of what the configuration says of them, with the prices and abilities of the models they name."""

from __future__ import annotations

from collections.abc import Mapping

from cascade.ladder import Ladder, Price, Rung
from gateway.cascades.served import Served
from gateway.config.ladder import LadderEntry
from gateway.config.models import ModelEntry


def served_ladders(entries: Mapping[str, ModelEntry]) -> dict[str, Served]:
    """All ladders of a `model_list`, by name."""
    return {name: _served(entry.ladder, name, entries) for name, entry in entries.items() if entry.ladder is not None}


def _served(entry: LadderEntry, name: str, entries: Mapping[str, ModelEntry]) -> Served:
    rungs = tuple(_rung(model, entries.get(model)) for model in entry.rungs)
    ladder = Ladder(
        name=name,
        rungs=rungs,
        window=entry.window,
        whole=entry.whole,
        file=entry.file,
        uncalibrated=entry.uncalibrated or 0.0,
    )
    return Served(ladder, entry.hold_back, entry.shadow, is_start_set=entry.uncalibrated is not None)


def _rung(model: str, entry: ModelEntry | None) -> Rung:
    if entry is None:  # A model of which there is nothing to say: it is listed by its pods alone.
        return Rung(model)
    price = Price(
        input_per_token=entry.input_cost_per_token or 0.0,
        cached_input_per_token=entry.cache_read_input_token_cost,
        output_per_token=entry.output_cost_per_token or 0.0,
        per_gpu_s=entry.rung.cost_per_gpu_second,
    )
    return Rung(model, price, entry.rung.context_tokens, entry.rung.abilities)
