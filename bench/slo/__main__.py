"""python -m bench.slo --load X --seed N --policy NAME [--scenario NAME]"""

from __future__ import annotations

import argparse
import sys
import time

from bench.slo.figures import figures_of
from bench.slo.policies import POLICIES
from bench.slo.reading import load_scenario
from bench.slo.virtual import Job, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.slo")
    parser.add_argument("--scenario", default="chat")
    parser.add_argument("--load", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="fcfs", choices=list(POLICIES))
    options = parser.parse_args()
    begun = time.perf_counter()
    run = play(Job(load_scenario(options.scenario), POLICIES[options.policy], options.load, options.seed))
    told = figures_of(run)
    for name, tier in told.tiers.items():
        print(f"{name:8} {tier.attainment:.3f} of {tier.offered}, {tier.refused} refused")
    print(f"met {told.met_per_s:.1f}/s, {told.met_tokens_per_s:,.0f} tokens/s in {run.length_s:.0f} s")
    print(f"wasted {told.wasted:.3f}")
    print(f"refusals {dict(told.reasons)} p50 {told.refusal_p50_s:.3f} p99 {told.refusal_p99_s:.3f}")
    print(f"took {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
