"""`make serve-vllm`: two real vLLM pods on the CPU with the gateway in front, until Ctrl-C.

Only starts, tells and ends; what a pod is stands in pods.py.
"""

import argparse
import asyncio
import signal
import sys

from tests.sources import ROOT
from tests.vllm.children import LOGS, ChildFailedError, is_free
from tests.vllm.gateways import in_front
from tests.vllm.pods import PodPlan, running

POD_PORTS = (8101, 8102)
LIFETIME_S = 7 * 24 * 3600


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two real vLLM pods on the CPU with the gateway in front.")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where the gateway listens")
    parser.add_argument("--model", default="smollm2", choices=("smollm2", "tinyqwen"))
    return parser.parse_args()


def curl_line(address: str, model: str) -> str:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
    return f"curl -i http://{address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


async def serve(address: str, model: str) -> None:
    taken = [port for port in (int(address.rpartition(":")[2]), *POD_PORTS) if not is_free(port)]
    if taken:
        raise ChildFailedError(f"ports in use: {', '.join(map(str, taken))}")
    print(f"Starting two vLLM pods with {model} (about a minute; logs in {LOGS.relative_to(ROOT)}/) ...", flush=True)
    plans = [PodPlan(model, port=port, lifetime_s=LIFETIME_S) for port in POD_PORTS]
    async with (
        running(plans) as pods,
        in_front([pod.url for pod in pods], listen=address, lifetime_s=LIFETIME_S) as gateway,
    ):
        print(f"The gateway listens on {gateway.url}, in front of", *(pod.url for pod in pods))
        print(f"Try:\n\n  {curl_line(address, model)}\n\nand see why that pod was chosen:\n")
        print(f"  curl '{gateway.admin}/receipts?limit=1'\n\nCtrl-C ends it all.", flush=True)
        # A dead pod is worth looking at through the gateway; without the gateway there is nothing to look at.
        while not await gateway.has_ended(within_s=1):
            pass
        raise gateway.failure("it ended")


async def until_interrupted(address: str, model: str) -> int:
    serving = asyncio.create_task(serve(address, model), name="serve-vllm")
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serving
    except ChildFailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("\nEnded.")
    return 0


def main() -> int:
    chosen = options()
    return asyncio.run(until_interrupted(chosen.listen, chosen.model))


if __name__ == "__main__":
    sys.exit(main())
