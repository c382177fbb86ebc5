"""Prints what counting and logging of requests costs: CPU of the process per request, by what is switched on.

A gateway is built by its configuration, and its observers are given records of requests: no socket, no pod. Rounds of
all rows alternate, so that a busy machine does not decide; a row is the median of its rounds.

    python -m bench.counting [--rounds N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from statistics import median

from gateway.app.build import build
from gateway.app.gateway import Gateway
from gateway.config.loading import load_settings
from gateway.pipeline.record import Outcome
from routing.candidates import CandidateShown
from routing.decision.placement import AttemptReceipt
from routing.request import Usage

REQUESTS = 2_000
"""Of one round; a multiple of the batches in which records are counted."""
ROUNDS = 60
WARM_UPS = 5
MODEL, PODS, TENANTS = "tiny", 8, 20
PERIOD_REQUESTS = 50_000
"""Requests after which the records are five minutes later: periods of the page's totals end."""

CONFIGURATIONS: Mapping[str, str] = {
    "metrics": "admin_listen: off\n",
    "metrics, admin port": "",
    "metrics, lines": "admin_listen: off\n",
    "metrics, admin port, lines": "",
}
LEVELS = {name: "info" if "lines" in name else "error" for name in CONFIGURATIONS}


def records(count: int, draw: Sequence[int]) -> list[Outcome]:
    """Return records of answered requests of several tenants, tiers and pods."""
    found = list[Outcome]()
    for number, odd in zip(range(count), cycle(draw), strict=False):
        cached = 16 * (odd % 60)
        attempt = AttemptReceipt(
            f"http://10.0.0.{odd % PODS}:8000",
            "ok",
            (CandidateShown("http://10.0.0.1:8000", True, 0.1, {"prefill": 0.1}, 64, 0, 1),),
            candidate_count=PODS,
            predicted_input_tokens=1000,
            predicted_cached_input_tokens=max(0, cached - 16),
            actual_cached_input_tokens=cached,
            predicted_ttft_s=0.1,
            actual_ttft_s=0.12,
            model=MODEL,
            start_s=0.001,
            duration_s=0.9,
        )
        found.append(
            Outcome(
                id=f"{number:024x}",
                tenant=f"tenant-{odd % TENANTS}",
                tier=("gold", "silver")[odd % 2],
                model=MODEL,
                requested_model=MODEL,
                path="/v1/chat/completions",
                stream=True,
                status=200,
                finish_reason="stop",
                slo_met=odd % 17 != 0,
                usage=Usage(1000, 100 + odd % 50, cached),
                attempts=(attempt,),
                ttft_s=0.12 + odd / 1000,
                duration_s=0.9 + odd / 500,
                decode_s=0.8,
                queue_wait_s=0.001,
            )
        )
    return found


@dataclass(slots=True)
class Subject:
    """One configuration, and its rounds so far."""

    gateway: Gateway
    took_us: list[float]
    counted: int = 0

    def run(self, outcomes: Sequence[Outcome]) -> None:
        """Give it all records once, and note the CPU per request."""
        self.counted += len(outcomes)
        at_s = 1.8e9 + self.counted // PERIOD_REQUESTS * 300.0
        for outcome in outcomes:
            outcome.at_s = at_s
        observers, logs = self.gateway.pipeline.observers, self.gateway.logs
        began_s = time.process_time()
        for outcome in outcomes:
            for observe in observers:
                observe(outcome)
        for log in logs.values():
            log.flush()
        while any(log.writer.is_busy for log in logs.values()):
            os.sched_yield()
        self.took_us.append((time.process_time() - began_s) / len(outcomes) * 1e6)


@contextmanager
def output_discarded() -> Iterator[None]:
    """Write what is logged to nowhere, until the block ends."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def gateway_of(folder: Path, name: str) -> Gateway:
    """Build the gateway of a row; nothing listens."""
    path = folder / "hearth.yaml"
    price = f"model_list: [{{model_name: {MODEL}, input_cost_per_token: 1e-6, output_cost_per_token: 2e-6}}]"
    path.write_text(f"discovery: {{static: {{pods: ['http://10.0.0.1:8000']}}}}\n{price}\n{CONFIGURATIONS[name]}")
    return build(load_settings({}, {"HEARTH_LOG_LEVEL": LEVELS[name]}, path), None)


async def run(rounds: int) -> dict[str, float]:
    """Return the median CPU per request of each row, in microseconds."""
    outcomes = records(REQUESTS, [number * 7 % 101 for number in range(101)])
    subjects = dict[str, Subject]()
    with tempfile.TemporaryDirectory() as folder, output_discarded():
        for name in CONFIGURATIONS:
            subjects[name] = Subject(gateway_of(Path(folder), name), [])
        for _ in range(rounds + WARM_UPS):
            for subject in subjects.values():
                subject.run(outcomes)
        for subject in subjects.values():
            await subject.gateway.probes.close()
    return {name: median(subject.took_us[WARM_UPS:]) for name, subject in subjects.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.counting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="also write the table to this file")
    options = parser.parse_args(argv)
    rows = asyncio.run(run(options.rounds))
    lines = [
        f"bench-counting, {datetime.now(UTC).date()}, 2 shared cores, CPython {platform.python_version()}",
        "",
        "CPU per request in microseconds, of counting and logging it: median of the rounds, which alternate.",
        "",
        *(f"{name:<30}{cost_us:>8.2f}" for name, cost_us in rows.items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.keep is not None:
        options.keep.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
