"""Draws a report: waits for the first token, cached tokens, and how evenly the pods were loaded.

Knows figures only. matplotlib is an extra, imported when a picture is drawn; no window is ever opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.records import Replay
from simulator.report import Report, RoutingReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"warm": "#d9480f", "round-robin": "#4263eb", "least-loaded": "#0c8599"}
OTHER_COLOURS = (
    *("#862e9c", "#2b8a3e", "#e67700", "#495057", "#1098ad", "#a61e4d"),
    *("#5c940d", "#9775fa", "#74b816", "#e8590c", "#364fc7", "#c2255c"),
)

MAX_IN_A_ROW = 5
"""Panels of load in one row of the picture."""

ROOMY = 3
"""Up to this many panels in a row have room for whole sentences."""

LOAD_COLOURS = "YlOrRd"

INK, FAINT, COLD = "#212529", "#868e96", "#dee2e6"


def draw(report: Report, replays: Sequence[Replay], path: Path) -> None:
    """Write one PNG with everything side by side."""
    from matplotlib.figure import Figure

    colours = _colours([one.routing for one in report.routings])
    rows = ceil(len(report.routings) / MAX_IN_A_ROW)
    columns = ceil(len(report.routings) / rows)
    figure = Figure(figsize=(12, 4 + 3.5 * rows), dpi=130, layout="constrained", facecolor="white")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.15, rows))[:, 0]
    ttft, tokens = upper.subplots(1, 2, width_ratios=(1.7, 1))
    _draw_ttfts(ttft, replays, colours)
    _draw_tokens(tokens, report.routings, colours)
    panels = list(lower.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[len(report.routings) :]:
        spare.set_visible(False)
    _draw_loads(panels[: len(report.routings)], report.routings, columns)
    figure.suptitle(_title(report), x=0.008, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.savefig(path)


def _title(report: Report) -> str:
    pods, requests = len(report.routings[0].work_s), report.routings[0].requests
    return f"{report.trace}: {requests:,} requests on {pods} pods"


def _colours(routings: Sequence[str]) -> dict[str, str]:
    others = iter(OTHER_COLOURS * len(routings))
    return {routing: COLOURS.get(routing) or next(others) for routing in routings}


def _draw_ttfts(axes: Axes, replays: Sequence[Replay], colours: dict[str, str]) -> None:
    """The share of requests whose first token was out by then, on a logarithmic axis of seconds."""
    for replay in replays:
        ttfts = sorted(one.ttft_s for one in replay.records if one.is_answered and one.ttft_s)
        if ttfts:
            shares = [100 * rank / len(ttfts) for rank in range(1, len(ttfts) + 1)]
            axes.step(ttfts, shares, where="post", color=colours[replay.routing], linewidth=2.2, label=replay.routing)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 100)
    for share in (50, 95):
        axes.axhline(share, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.annotate(
            f"p{share}",
            (1, share),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 3),
            ha="right",
            textcoords="offset points",
            fontsize=8,
            color=FAINT,
        )
    _dress(axes, "Time to first token", "seconds", "% of requests")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False, bbox_to_anchor=(1, 0.04))


def _draw_tokens(axes: Axes, routings: Sequence[RoutingReport], colours: dict[str, str]) -> None:
    """Prompt tokens in millions, the cached part in colour."""
    places = list(range(len(routings)))[::-1]
    warm = [one.cached_tokens / 1e6 for one in routings]
    cold = [(one.prompt_tokens - one.cached_tokens) / 1e6 for one in routings]
    axes.barh(places, warm, color=[colours[one.routing] for one in routings], height=0.55)
    axes.barh(places, cold, left=warm, color=COLD, height=0.55)
    for place, one in zip(places, routings, strict=True):
        axes.annotate(
            f"{one.hit_ratio:.1%} warm",
            (one.cached_tokens / 1e6, place),
            xytext=(6, 0),
            va="center",
            textcoords="offset points",
            fontsize=10,
            fontweight="bold",
            color=INK,
        )
    axes.set_yticks(places, [one.routing for one in routings])
    axes.set_ylim(-0.6, len(routings) - 0.4)
    _dress(axes, "Prompt tokens: warm (colour), computed (grey)", "million tokens", "")
    axes.tick_params(axis="y", length=0)


def _draw_loads(panels: Sequence[Axes], routings: Sequence[RoutingReport], columns: int) -> None:
    """One panel a routing, one row a pod: the darker, the more prefill work it owed at the time; on one scale."""
    from matplotlib.ticker import MaxNLocator

    peak = max((max(owed) for one in routings for owed in one.load.owed_s.values()), default=0.0)
    for number, (axes, one) in enumerate(zip(panels, routings, strict=True)):
        owed = list(one.load.owed_s.values())
        minutes = one.load.step_s * len(owed[0]) / 60
        image = axes.imshow(
            owed,
            aspect="auto",
            cmap=LOAD_COLOURS,
            vmin=0,
            vmax=max(peak, 1e-9),
            interpolation="nearest",
            extent=(0, minutes, len(owed) - 0.5, -0.5),
        )
        axes.set_yticks(range(len(owed)), list(one.load.owed_s) if number % columns == 0 else [])
        title = f"{one.routing}: load per pod" if columns <= ROOMY else one.routing
        below = (
            f"minutes (busiest pod {one.imbalance:.2f} x mean)" if columns <= ROOMY else f"busiest {one.imbalance:.2f}"
        )
        _dress(axes, title, below, "")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=minutes > 3))
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
    bar = panels[-1].figure.colorbar(image, ax=list(panels), pad=0.01, aspect=30)
    bar.set_label("seconds of prefill owed", color=INK)
    bar.outline.set_visible(False)


def _dress(axes: Axes, title: str, below: str, right: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(below, color=INK)
    axes.set_ylabel(right, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="x", color=COLD, linewidth=0.6)
    axes.set_axisbelow(True)
