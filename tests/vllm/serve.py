"""`make serve-vllm`: two real vLLM pods on the CPU with the gateway in front, until Ctrl-C.

Only starts, tells and ends; what a pod is stands in pods.py.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

from tests.sources import ROOT
from tests.vllm.children import LOGS, Child, ChildFailedError, bounds, is_free
from tests.vllm.pods import Pod, PodPlan, running

POD_PORTS = (8101, 8102)
LIFETIME_S = 7 * 24 * 3600


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two real vLLM pods on the CPU with the gateway in front.")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where the gateway listens")
    parser.add_argument("--model", default="smollm2", choices=("smollm2", "tinyqwen"))
    return parser.parse_args()


@contextlib.asynccontextmanager
async def gateway_before(pods: tuple[Pod, ...], address: str) -> AsyncIterator[Child]:
    words = [*bounds(LIFETIME_S), str(ROOT / ".venv" / "bin" / "hearth"), "serve", "--listen", address]
    for pod in pods:
        words += ["--pod", pod.url]
    gateway = Child("gateway", words, f"http://{address}")
    try:
        await gateway.answers("/ready", within_s=30)
        yield gateway
    finally:
        await gateway.stop()


def curl_line(address: str, model: str) -> str:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
    return f"curl -i http://{address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


async def serve(address: str, model: str) -> None:
    taken = [port for port in (int(address.rpartition(":")[2]), *POD_PORTS) if not is_free(port)]
    if taken:
        raise ChildFailedError(f"ports in use: {', '.join(map(str, taken))}")
    print(f"Starting two vLLM pods with {model} (about a minute; logs in {LOGS.relative_to(ROOT)}/) ...", flush=True)
    plans = [PodPlan(model, port, lifetime_s=LIFETIME_S) for port in POD_PORTS]
    async with running(plans) as pods, gateway_before(pods, address) as gateway:
        print(f"The gateway listens on http://{address}, in front of", *(pod.url for pod in pods))
        print(f"Try:\n\n  {curl_line(address, model)}\n\nCtrl-C ends it all.", flush=True)
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
