"""`python -m tests.soak`: three gateways at half load for an hour while pods and Redis come and go; exits 1 on growth.

Gateways are left alone, so that what one of them holds on to can be seen. Prints wanted beside measured and keeps the
table; requests that failed are told as `python -m tests.chaos` tells them. With `--rules` a Prometheus with our rules
scrapes the gateways, and an alert that fires is a fault as well.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from tests.chaos.__main__ import empty, log_event
from tests.chaos.cast import Cast, on_stage
from tests.chaos.deeds import Kind, Pace, Whom, draw_deeds
from tests.chaos.doing import Doing
from tests.chaos.play import Scene, play_with
from tests.chaos.report import Tally
from tests.soak.alerts import Cause, FiredAlert, causes_of, watching_alerts
from tests.soak.measuring import BOUNDS, Measuring, Row, judge
from tests.soak.trend import SETTLING

CHURN = Pace(apart_s=(5.0, 15.0))

MEASUREMENTS = 360

LEAST_APART_S = 2.0


async def soak(
    seed: int, seconds: float, rate: float, *, with_rules: bool = False
) -> tuple[Tally, list[Row], list[FiredAlert] | None, list[FiredAlert]]:
    """One run. Returns the alerts that fired as well, None without rules, and the findings of `hearth doctor`.

    An alert that names what suffered from the run's own faults comes with them.
    """
    async with AsyncExitStack() as stack:
        folder = empty("soak")
        cast = await stack.enter_async_context(on_stage(folder))
        watch = None
        if with_rules:
            urls = [gateway.metrics for gateway in cast.gateways]
            watch = await stack.enter_async_context(watching_alerts(folder / "prometheus", urls))
        kinds = [kind for kind in Kind if kind.whom is not Whom.GATEWAY]
        deeds = draw_deeds(seed, seconds, len(cast.pods), len(cast.gateways), kinds=kinds, pace=CHURN)
        doing, measuring = Doing(cast, log_event), Measuring(cast, max(LEAST_APART_S, seconds / MEASUREMENTS))
        measure = asyncio.create_task(measuring.measure())
        try:
            tally = await play_with(cast, Scene(seed, seconds, rate), doing, lambda: doing.all(deeds))
        finally:
            measure.cancel()
        tally.name, tally.deeds = "soak", len(deeds)
        now_s = asyncio.get_running_loop().time()
        fired = None if watch is None else await watch.fired(now_s, causes(cast, doing))
        findings = [] if watch is None else await watch.findings(now_s)
        return tally, judge(measuring), fired, findings


def causes(cast: Cast, doing: Doing) -> list[Cause]:
    """Every fault of the run, with the URL by which gateways know the pod that suffered."""
    urls = {pod.name: wire.url for pod, wire in zip(cast.pods, cast.pod_wires, strict=True)}
    return causes_of(doing.done, urls)


def alert_lines(fired: list[FiredAlert] | None, findings: list[FiredAlert]) -> Iterator[str]:
    """What our rules and `hearth doctor` report of the run."""
    if fired is None:
        return
    calm, caused = [alert for alert in fired if not alert.faults], [alert for alert in fired if alert.faults]
    short = "  FELL SHORT" if calm else ""
    yield f"alerts of deploy/prometheus without a fault of the run: {len(calm)}, wanted 0{short}"
    yield from (f"  {alert}" for alert in calm)
    yield f"alerts for what the run did itself: {len(caused)}"
    yield from (f"  {alert}" for alert in caused)
    yield f"findings of hearth doctor: {len(findings)}, wanted 0{'  FELL SHORT' if findings else ''}"
    yield from (f"  {finding}" for finding in findings)


def table(rows: list[Row]) -> Iterator[str]:
    """Wanted beside measured."""
    yield f"{'who':10} {'what':18} {'fill-up':>9} {'level':>9} {'an hour':>9} {'growth':>9} {'wanted':>9}"
    for row in rows:
        trend = row.trend
        measured = f"{trend.fill_up:+9.1f} {trend.level:9.1f} {trend.an_hour:+9.1f} {trend.growth:+9.1f}"
        figures = f"{measured} {row.bound.most:>8g}<"
        yield f"{row.who:10} {row.bound.name:18} {figures}{'' if row.is_kept else '  FELL SHORT'}"
    yield f"fill-up: growth in the first {SETTLING:.0%} of the run, which is not judged."
    yield f"growth: by least squares over the last {1 - SETTLING:.0%} of the run. Wanted less than:"
    yield from (f"  {bound.name}: {bound.most:g} ({bound.why})" for bound in BOUNDS)


def main() -> int:
    """What the command line asks for."""
    requested = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    requested.add_argument("--minutes", type=float, default=60.0)
    requested.add_argument("--rate", type=float, default=4.0, help="requests a second (4)")
    requested.add_argument("--seed", type=int, default=1)
    requested.add_argument(
        "--rules", action="store_true", help="scrape with our rules; an alert without a fault of the run fails"
    )
    requested.add_argument("--keep", type=Path, help="where the table goes as well")
    options = requested.parse_args()
    tally, rows, fired, findings = asyncio.run(
        soak(options.seed, options.minutes * 60, options.rate, with_rules=options.rules)
    )
    reported = "\n".join(
        (
            f"{options.minutes:g} minutes, {options.rate:g} requests a second",
            *tally.lines(),
            *table(rows),
            *alert_lines(fired, findings),
        )
    )
    print(reported)
    if options.keep:
        options.keep.write_text(f"{reported}\n", encoding="utf-8")
    is_calm = all(alert.faults for alert in fired or ())
    return bool(tally.faults()) or not is_calm or bool(findings) or not all(row.is_kept for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
