"""`make demo-envoy REAL=1`: the same demo with two real vLLM pods on the CPU, which end with it."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from simulator.children import ChildFailed
from simulator.envoy_demo import Wanted, show
from tests.vllm.children import LOGS, ChildFailedError
from tests.vllm.pods import PodPlan, running

MODEL = "smollm2"
LIFETIME_S = 7 * 24 * 3600


def options() -> Wanted:
    parser = argparse.ArgumentParser(description="Envoy in front of two real vLLM pods on the CPU.")
    parser.add_argument("--envoy", type=Path, required=True, metavar="FILE", help="Envoy's binary")
    parser.add_argument("--config", type=Path, default=Path("deploy/envoy/own.yaml"), metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="leave it all up afterwards, until Ctrl-C")
    stated = parser.parse_args()
    return Wanted(stated.envoy, stated.config, (), MODEL, stated.keep, Path("out/demo-envoy"))


async def demonstrate(wanted: Wanted) -> int:
    print(f"Starting two vLLM pods with {MODEL} (about a minute; logs in {LOGS}) ...", flush=True)
    async with running([PodPlan(MODEL, lifetime_s=LIFETIME_S) for _ in range(2)]) as pods:
        urls = tuple(pod.url for pod in pods)
        return await show(Wanted(wanted.envoy, wanted.config, urls, MODEL, wanted.keeps, wanted.out))


async def until_interrupted(wanted: Wanted) -> int:
    demonstrating = asyncio.create_task(demonstrate(wanted), name="demo-envoy")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, demonstrating.cancel)
    try:
        return await demonstrating
    except (ChildFailed, ChildFailedError) as failure:
        print(failure, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("\nEnded.")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(until_interrupted(options())))
