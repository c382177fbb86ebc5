"""Long runs: `python -m tests.fuzz [NAME ...] --inputs N --seconds S`.

Each target runs in a child of its own that is ended when one input takes too long. With atheris installed (`make
fuzz-long` does) coverage leads the way; without it, changes of the corpus are drawn. A line for each run is added to
runs.txt beside this; what broke a parser is kept in out/fuzz, to be mended and moved to the corpus. A child that is
still busy long after its time was starved by others on its machine: that is no fall, and no inputs are counted.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.registry import TARGETS

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out" / "fuzz"
RUNS = HERE / "runs.txt"

FED = re.compile(r"number_of_executed_units: +(\d+)")
"""As libFuzzer counts, and so do we."""

SPARE_S = 600.0
"""For a child to start and to end in: to lead by coverage, it first looks at thousands of functions."""


STARVED = -1
"""No way for a child to end: it was ended."""


def main() -> int:
    """Run the targets one after another. 1 where one fell over or hung."""
    requested = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    requested.add_argument("names", nargs="*", default=[*TARGETS], metavar="NAME")
    requested.add_argument("--inputs", type=int, default=1_000_000, help="for each target")
    requested.add_argument("--seconds", type=int, default=600, help="for each target, at most")
    requested.add_argument("--lead", choices=("coverage", "chance"), default="coverage", help="chance is faster by far")
    options = requested.parse_args()
    fell = [name for name in options.names if not run(name, options.inputs, options.seconds, options.lead)]
    print(f"fell over: {', '.join(fell) or 'none'}")
    return bool(fell)


def run(name: str, inputs: int, seconds: int, lead: str) -> bool:
    """Feed one target; whether it stood."""
    log = OUT / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "tests.fuzz.one", name, str(inputs), str(seconds), lead]
    with log.open("wb") as reported:
        try:
            ended = subprocess.run(
                words, stdout=reported, stderr=subprocess.STDOUT, timeout=seconds + SPARE_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            ended = STARVED
    fed = FED.search(log.read_text(errors="replace"))
    fate, count = {0: "stood", STARVED: "was starved"}.get(ended, "FELL"), fed[1] if fed else "?"
    line = f"{dt.datetime.now(dt.UTC):%Y-%m-%d} {name:12} {fate} after {count} inputs"
    print(line, flush=True)
    with RUNS.open("a") as kept:
        kept.write(f"{line}\n")
    return ended in (0, STARVED)


if __name__ == "__main__":
    raise SystemExit(main())
