"""`hearth deletion-cost`: before a pool's count falls, marks the pods that should go first, in Kubernetes.

Reads the admin port of a gateway, and lists and patches pods with the service account of the pod that it runs in. While
the gateway does not act (`supply.scaling: act`), does not know its figures or cannot be read, nothing is changed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from gateway.commands.admin import DEFAULT_URL, AdminClient, add_connection_flags, printable, read_token
from gateway.config.discovery import KubernetesSourceConfig
from gateway.deletion_cost.annotator import PodAnnotator
from gateway.deletion_cost.pod_costs import costs_by_address
from gateway.discovery.kubernetes_api import ApiError, ApiUnavailable, ResourceVersionExpired, ServiceAccount
from tenancy.document import InvalidValue

Read = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Returns the JSON of a page of the admin port. Raises `InvalidValue`."""

MIN_INTERVAL_S = 5.0


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    add_connection_flags(parser)
    parser.add_argument(
        "--selector", metavar="LABELS", default="", help="labels of the engines' pods, as KEY=VALUE,..."
    )
    parser.add_argument("--namespace", metavar="NAME", help="namespace of these pods (default: our own)")
    parser.add_argument("--api", metavar="URL", help="API server (default: that of the cluster that we run in)")
    parser.add_argument("--interval", metavar="S", type=float, default=15.0, help="seconds between two looks (15)")
    parser.add_argument("--once", action="store_true", help="look once")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the command until SIGTERM. Returns 0; 1 where it cannot begin or, with --once, a look has failed."""
    try:
        client = AdminClient(
            arguments.url or variables.get("HEARTH_ADMIN_URL") or DEFAULT_URL, read_token(arguments, variables)
        )
        place = KubernetesSourceConfig(api=arguments.api, namespace=arguments.namespace)
        account = ServiceAccount.from_config(place, variables)
        if arguments.interval < MIN_INTERVAL_S:
            raise InvalidValue(f"--interval: is {arguments.interval:g}; must be at least {MIN_INTERVAL_S:g} seconds")
    except (InvalidValue, ApiError) as fault:
        sys.stderr.write(f"hearth: {fault}\n")
        return 1
    return asyncio.run(_follow(client, account, arguments))


async def _follow(client: AdminClient, account: ServiceAccount, arguments: Namespace) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession(trust_env=False) as session:
        annotator = PodAnnotator(account, session)
        while True:
            is_well = await look(
                lambda path: asyncio.to_thread(client.get, path), annotator, arguments.selector, _write_line
            )
            if arguments.once:
                return 0 if is_well else 1
            with suppress(TimeoutError):
                async with asyncio.timeout(arguments.interval):
                    await stop.wait()
            if stop.is_set():
                return 0


async def look(read: Read, annotator: PodAnnotator, selector: str, log: Callable[[str], object]) -> bool:
    """Set the costs of this moment. Returns False where the gateway or the API server cannot be read or written."""
    try:
        scale, fleet = await read("/scale"), await read("/fleet")
        pods = await annotator.pods(selector)
        known = {address: pod.cost for address, pod in pods.items() if pod.cost is not None}
        costs = costs_by_address(scale, fleet, known)
        if costs is None:
            return True
        if patched := await annotator.apply(pods, costs):
            log(f"hearth: {patched} pods patched; {len(costs)} are to go first")
    except (InvalidValue, ApiError, ApiUnavailable, ResourceVersionExpired) as fault:
        log(f"hearth: {printable(fault)}")
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        log(
            f"hearth: the answer of the admin port is not understood ({printable(repr(fault))}); is it of this version?"
        )
    else:
        return True
    return False


def _write_line(line: str) -> None:
    sys.stderr.write(line + "\n")
