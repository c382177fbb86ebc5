"""Samples of the recording in the metric names and labels of today, by `docs/public-names.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.sources import ROOT

PUBLIC: dict[str, Any] = json.loads((ROOT / "docs/public-names.json").read_text(encoding="utf-8"))

PARTS = ("", "_bucket", "_sum", "_count")

BY_VALUE = {
    ("hearth_tenant_tokens_total", "kind"): {
        "prompt": "hearth_tenant_input_tokens_total",
        "cached": "hearth_tenant_cached_input_tokens_total",
        "generation": "hearth_tenant_output_tokens_total",
    },
    ("hearth_pair_transfer_seconds_total", "which"): {
        "real": "hearth_kv_transfer_duration_seconds_sum",
        "predicted": "hearth_kv_transfer_predicted_seconds_sum",
    },
}
"""Metrics that were one with a label, by the label's values."""

RESTRUCTURED = frozenset(("hearth_attempts_total", "hearth_ttft_prediction_error_seconds", "hearth_queue_wait_seconds"))
"""Metrics that count what none did before: no recorded value can be compared."""

ADDED = frozenset(PUBLIC["added"]["metrics"])
"""Metrics since the recording."""

ADDED_LABELS = frozenset(
    (metric, label.removesuffix("}"))
    for metric, _, label in (added.partition("{") for added in PUBLIC["added"]["labels"])
    if "=" not in label
)
"""Labels since the recording, of metrics that it has: values are compared as sums over them."""

UNRECORDED = ("hearth_kv_transfer_duration_seconds", "hearth_kv_transfer_predicted_seconds")
"""Histograms of which only the sum was recorded."""


def translated(samples: Iterable[Mapping[str, Any]], names: Mapping[str, str | None]) -> Iterator[dict[str, Any]]:
    """Yield the recorded samples in new names. `names`: renamed label values, such as reasons; None: deleted."""
    for sample in samples:
        name, labels, value = sample["name"], dict(sample["labels"]), sample["value"]
        old, part = _family(name)
        shown: dict[str, str] = {}
        new: Any = PUBLIC["metrics"][old]
        for label, text in labels.items():
            by_value = BY_VALUE.get((old, label))
            if by_value is not None:
                new = by_value[text]
                continue
            target = PUBLIC["labels"].get(f"{old}{{{label}}}", label)
            changed = PUBLIC["labels"].get(f"{old}{{{label}={text}}}", names.get(f"={text}", names.get(text, text)))
            if changed is None:
                new = None
            elif target == "upstream,dp_rank":
                url, _, rank = text.partition("#")
                shown |= {"upstream": url, "dp_rank": rank or "0"}
            else:
                shown[target] = changed
        if new is None or new in RESTRUCTURED:
            continue
        if new == "hearth_discovery_source_up":
            value = 1.0 - value
        yield {"name": new + part, "labels": shown, "value": value}


def comparable(samples: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the samples of today that the recording has a value for, summed over labels that it does not have."""
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in samples:
        name, stem = sample["name"], _stem(sample["name"])
        if {name, stem} & (RESTRUCTURED | ADDED) or (stem in UNRECORDED and not name.endswith("_sum")):
            continue
        labels = ((label, text) for label, text in sample["labels"].items() if (stem, label) not in ADDED_LABELS)
        key = (name, tuple(labels))
        sums[key] = sums[key] + sample["value"] if key in sums else sample["value"]
    return [{"name": name, "labels": dict(labels), "value": value} for (name, labels), value in sums.items()]


def _family(name: str) -> tuple[str, str]:
    """Return the name in the map, and the part of a histogram."""
    for part in PARTS:
        stem = name.removesuffix(part) if part else name
        if stem in PUBLIC["metrics"]:
            return stem, name[len(stem) :]
    raise KeyError(name)


def _stem(name: str) -> str:
    return next((name.removesuffix(part) for part in PARTS[1:] if name.endswith(part)), name)
