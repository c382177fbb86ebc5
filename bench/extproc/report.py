"""The tables and the verdict: medians over rounds, ours beside the bare handler, each wait beside Envoy's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.extproc.modes import BOTH, BUFFERED, PLAIN, Mode, modes
from bench.extproc.pickers import BARE, OURS
from bench.extproc.rounds import CHUNK_MODES, LARGE_MODES, NO_PICKER, Figure
from bench.overhead.report import Target

Figures = Mapping[Figure, Sequence[float]]

MAX_OF_BARE = 1.35


def middle(figures: Figures, picker: str, mode: str, quantity: str) -> float | None:
    """The median over rounds, None where nothing was measured."""
    measured = figures.get((picker, mode, quantity))
    return median(measured) if measured else None


def targets(figures: Figures, fault_count: int) -> list[Target]:
    """The targets of the picker."""
    found = [
        Target(f"{mode.label}: picker's CPU per request against a bare handler", MAX_OF_BARE, _of_bare(figures, mode))
        for mode in modes()
        if mode.key != PLAIN
    ]
    return [*found, Target("answers that were not whole", 0, fault_count)]


def stated(figures: Figures) -> str:
    """What was to be measured and has no bound of its own."""
    lines = []
    for mode in modes():
        if mode.key in LARGE_MODES and mode.key != PLAIN:
            lines += [_added(figures, mode, share) for share in ("p50", "p99")]
    several = middle(figures, OURS, "several", "busiest share")
    if several is not None:
        lines.append(f"stated two workers of one picker: the busier one did {several:.0%} of the work")
    for key in (BUFFERED, BOTH):
        chunk = middle(figures, OURS, key, "picker per chunk")
        lines.append(f"stated a chunk of an answer, {key}: {_shown(chunk, 1)} us of the picker's CPU")
    return "\n".join(lines)


def tables(figures: Figures) -> str:
    """Requests, chunks, long prompts."""
    return "\n\n".join(
        (
            _table(figures, "2 KB request", "request", modes()),
            _table(figures, "chunk", "chunk", [mode for mode in modes() if mode.key in CHUNK_MODES]),
            _table(
                figures,
                "220 KB stream of 20 chunks",
                "long prompt",
                [mode for mode in modes() if mode.key in LARGE_MODES],
            ),
            _large_table(figures),
        )
    )


def _table(figures: Figures, head: str, unit: str, shown: Sequence[Mode]) -> str:
    rows = [
        [f"us per {head}", "picker, ours", "picker, bare", "ratio", "Envoy with ours", "with bare", "requests/s, ours"]
    ]
    for mode in shown:
        picker = NO_PICKER if mode.key == PLAIN else OURS
        ours, bare = (middle(figures, name, mode.key, f"picker per {unit}") for name in (OURS, BARE))
        rows.append(
            [
                mode.label,
                _shown(ours, 1),
                _shown(bare, 1),
                _shown(ours / bare if ours is not None and bare else None, 2),
                _shown(middle(figures, picker, mode.key, f"envoy per {unit}"), 1),
                _shown(middle(figures, BARE, mode.key, f"envoy per {unit}"), 1),
                _shown(middle(figures, picker, mode.key, "rate"), 0) if unit == "request" else "",
            ]
        )
    return _drawn(rows)


def _large_table(figures: Figures) -> str:
    rows = [["220 KB, 150 at a time: TTFT in ms", "ours p50", "ours p99", "bare p50", "bare p99"]]
    for mode in modes():
        if mode.key in LARGE_MODES:
            names = (NO_PICKER,) if mode.key == PLAIN else (OURS, BARE)
            found = [
                _shown(middle(figures, name, mode.key, f"large {share}"), 1)
                for name in names
                for share in ("p50", "p99")
            ]
            rows.append([mode.label, *found, *[""] * (4 - len(found))])
    return _drawn(rows)


def _added(figures: Figures, mode: Mode, share: str) -> str:
    ours, plain = middle(figures, OURS, mode.key, f"large {share}"), middle(figures, NO_PICKER, PLAIN, f"large {share}")
    if ours is None or not plain:
        return f"stated 220 KB, 150 at a time, {mode.key}, {share}: not measured"
    return (
        f"stated 220 KB, 150 at a time, {mode.key}, {share}: {ours - plain:.1f} ms added, "
        f"{ours / plain:.2f} times Envoy alone"
    )


def _of_bare(figures: Figures, mode: Mode) -> float | None:
    ours, bare = (middle(figures, name, mode.key, "picker per request") for name in (OURS, BARE))
    return None if ours is None or not bare else ours / bare


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _drawn(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])
