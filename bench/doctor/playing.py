"""One case in a process of its own: what a worker is given, as values that can be sent to it."""

from __future__ import annotations

from typing import Any

from bench.doctor.cases import BY_NAME, play_change, play_faults
from bench.doctor.constrained import play_constrained
from bench.doctor.healthy import play_healthy
from diagnosis.baseline import load_baseline


def play_one(job: tuple[Any, ...]) -> Any:
    """Play one case in a process of its own."""
    kind, name, seed, document = job
    baseline = load_baseline(document)
    if kind == "fault":
        return play_faults([BY_NAME[name]], seed, baseline, with_mask=True)
    if kind == "pair":
        return play_faults([BY_NAME[each] for each in name], seed, baseline, with_mask=False)[0]
    if kind == "constrained":
        return play_constrained(name, seed)
    if kind == "change":
        return play_change(name, seed, baseline)
    return play_healthy(name, seed, baseline)
