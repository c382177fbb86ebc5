"""A simulated vLLM pod: an HTTP server over simulated engines, for tests, demos and benches.

In a test `async with SimulatedPod(Options(...)) as pod:` and `pod.url`; as a command `hearth pod`, which
prints its URL on the first line and ends on SIGTERM. What is sent and when follows vLLM 0.32; the content is made up.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import uvloop
from aiohttp import web

from simulator.app import Door, Received, bootstrap_app, make_app
from simulator.engine import Engine
from simulator.engine_profile import load_engine_profile
from simulator.faults import NO_FAULT, Fault, FaultKind, Trouble
from simulator.link import Link
from simulator.options import TASKS, Options
from simulator.profile import Profile
from simulator.service import Service
from simulator.transfer.wiring import ROLES, Wiring

FLAGS = (
    *("time_scale", "prefill_tokens_per_s", "prefill_quadratic_tokens", "step_base_s"),
    *("kv_capacity_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens"),
)
"""Fields of a profile that the command line may change."""

SHUTDOWN_S = 0.05
"""Grace for connections accepted while all were cut. 0 would mean no limit to aiohttp."""


class SimulatedPod:
    """One pod. It may be stopped and started again, on the same port, with cold engines."""

    def __init__(self, options: Options | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.options = options or Options()
        self.host = host
        self.port = port
        """Chosen at the first start when it is 0, and kept."""
        self.died = asyncio.Event()
        """A fault has ended it."""
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._door: Door | None = None
        self._loading: asyncio.TimerHandle | None = None
        self._bootstrap: web.AppRunner | None = None
        self.bootstrap_url: str | None = None
        """Where Mooncake's bootstrap server listens."""

    def __repr__(self) -> str:
        return f"<SimulatedPod {self.url} {'up' if self._server is not None else 'down'}, {self.fault.kind}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    @property
    def service(self) -> Service:
        """The pod behind the server; another one after each start."""
        if self._door is None:
            raise RuntimeError("the pod was never started")
        return self._door.service

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Its data-parallel ranks."""
        return tuple(rank.engine for rank in self.service.ranks)

    @property
    def received(self) -> Sequence[Received]:
        """The last requests that reached it, oldest first."""
        return () if self._door is None else tuple(self._door.received)

    @property
    def fault(self) -> Fault:
        """What is wrong with it now."""
        return NO_FAULT if self._door is None else self._door.trouble.fault

    async def start(self) -> None:
        """Listen, with cold engines and nothing wrong."""
        if self._runner is not None:
            await self.stop()
        loop = asyncio.get_running_loop()
        self.died.clear()
        self._door = Door(Service(self.options), Trouble(), self.set_fault)
        self._runner = web.AppRunner(
            make_app(self._door),
            # A client that goes away cancels its handler, whose generation is then aborted.
            handler_cancellation=True,
            keepalive_timeout=self.options.keep_alive_s,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
        )
        await self._open_transfers(self._door.service)
        await self._runner.setup()
        protocols = self._runner.server
        if protocols is None:
            raise RuntimeError("the runner has no server after its setup")
        self._server = await loop.create_server(protocols, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        if self.options.load_s > 0:
            self._loading = loop.call_later(self.options.load_s, self._finish_loading)
        else:
            self._finish_loading()

    async def stop(self) -> None:
        """Close everything at once."""
        if self._runner is None:
            return
        self._close()
        runner, self._runner = self._runner, None
        await runner.cleanup()
        if self._bootstrap is not None:
            await self._bootstrap.cleanup()

    def set_fault(self, fault: Fault) -> None:
        """Let something go wrong from now on; `NO_FAULT` takes back whatever can be taken back."""
        if self._door is None:
            raise RuntimeError("the pod was never started")
        service = self._door.service
        self._door.trouble.begin(fault)
        is_still = fault.kind in (FaultKind.HANG, FaultKind.FREEZE)
        service.set_speed(0.0 if is_still else 1.0 / fault.factor)
        service.is_unready = fault.kind is FaultKind.UNREADY
        if service.transfers is not None:
            service.transfers.side_channel.is_stalled = fault.kind in (FaultKind.STALL, FaultKind.FREEZE)
        match fault.kind:
            case FaultKind.DIE:
                self._close()
                self.died.set()
            case FaultKind.FREEZE:
                self._stop_listening()
            case FaultKind.CRASH:
                service.kill_engines()

    async def _open_transfers(self, service: Service) -> None:
        """Let other pods ask for KV, and Mooncake's ask who this is."""
        if service.transfers is None:
            return
        await service.transfers.open(self.host)
        if service.transfers.wiring.connector == "MooncakeConnector":
            self._bootstrap = web.AppRunner(
                bootstrap_app(service.transfers), access_log=None, shutdown_timeout=SHUTDOWN_S
            )
            await self._bootstrap.setup()
            site = web.TCPSite(self._bootstrap, self.host, service.transfers.wiring.bootstrap_port)
            await site.start()
            self.bootstrap_url = f"http://{self.host}:{self._bootstrap.addresses[0][1]}"

    def _finish_loading(self) -> None:
        self.service.is_loaded = True

    def _stop_listening(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _close(self) -> None:
        """Stop listening, and cut every connection where it stands."""
        self._stop_listening()
        self.service.stop()
        connections = self._runner.server.connections if self._runner is not None and self._runner.server else ()
        for connection in connections:
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()


# --- As a command -----------------------------------------------------------------------------------------------------


def parse_options(arguments: Sequence[str]) -> tuple[Options, str, int]:
    """Options, host and port from the command line, in vLLM's words where it has them."""
    parser = make_parser()
    parsed = parser.parse_args(arguments)
    host, _, port = parsed.listen.rpartition(":")
    try:
        return _options(parsed), host, int(port)
    except ValueError as error:
        parser.error(str(error))


def make_parser() -> argparse.ArgumentParser:
    """The flags of `hearth pod`."""
    options, profile = Options(), Profile()
    parser = argparse.ArgumentParser(
        prog="hearth pod",
        description="Run a simulated vLLM pod. Its first line of output is its URL; SIGTERM or Ctrl-C ends it.",
    )
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="(default %(default)s)")
    parser.add_argument("--model", action="append", metavar="NAME", help="a name it is served under; repeatable")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME=PATH", help="an adapter; repeatable")
    parser.add_argument("--engines", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--enable-expert-parallel", action="store_true", help="the ranks step together")
    parser.add_argument(
        "--task", action="append", choices=sorted(TASKS), help="a task it is served for; repeatable (default generate)"
    )
    parser.add_argument(
        "--max-model-len", type=int, default=options.max_model_len, metavar="TOKENS", help="(default %(default)s)"
    )
    parser.add_argument("--api-key", metavar="KEY", help="key that requests must send")
    parser.add_argument("--no-prompt-tokens-details", action="store_true", help="usage without cached tokens")
    parser.add_argument(
        "--max-num-queued-reqs", type=int, metavar="N", help="more waiting requests are rejected with 503"
    )
    parser.add_argument("--accents", action="store_true", help="answers with characters of several bytes")
    parser.add_argument(
        "--max-reasoning-tokens", type=int, default=0, metavar="TOKENS", help="chat answers think first"
    )
    parser.add_argument("--calls-tools", action="store_true", help="mostly call the tools that are offered")
    parser.add_argument("--load-s", type=float, default=0.0, help="real seconds until /health says 200")
    parser.add_argument(
        "--min-answer-tokens",
        type=int,
        default=options.min_answer_tokens,
        metavar="TOKENS",
        help="shortest answer (default %(default)s)",
    )
    parser.add_argument(
        "--max-answer-tokens",
        type=int,
        default=options.max_answer_tokens,
        metavar="TOKENS",
        help="longest answer (default %(default)s)",
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="engine profile; the flags below change it")
    for name in ("time_scale", "prefill_tokens_per_s", "prefill_quadratic_tokens", "step_base_s"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, help=f"default {getattr(profile, name):g}")
    for name in ("kv_capacity_tokens", "block_size", "max_num_seqs", "max_num_batched_tokens"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {getattr(profile, name)}")
    _add_wiring(parser)
    parser.add_argument(
        "--scheduling-policy", choices=("fcfs", "priority"), default="fcfs", help="as vLLM's (default %(default)s)"
    )
    return parser


def _add_wiring(parser: argparse.ArgumentParser) -> None:
    """How it shares KV with other pods."""
    wiring, link = Wiring(), Link()
    add = parser.add_argument
    add(
        "--kv-connector",
        choices=("NixlConnector", "MooncakeConnector", "ExampleConnector"),
        help="how KV is handed over (default: not at all)",
    )
    add("--role", choices=sorted(ROLES), default="either", help="which side of a pair it is, with --kv-connector")
    add(
        "--kv-lease-s",
        type=float,
        default=wiring.lease_s,
        metavar="S",
        help="how long KV is kept for the decode pod (default %(default)s)",
    )
    add(
        "--kv-load-failure-policy",
        choices=("fail", "recompute"),
        default="fail",
        help="when KV cannot be loaded (default %(default)s)",
    )
    add("--kv-side-channel-port", type=int, default=0, metavar="PORT", help="of NixlConnector (default: any)")
    add("--kv-bootstrap-port", type=int, default=0, metavar="PORT", help="of MooncakeConnector (default: any)")
    add("--kv-folder", type=Path, metavar="FOLDER", help="shared by the pods of ExampleConnector")
    add("--kv-bytes-per-token", type=int, default=link.bytes_per_token, metavar="N", help="(default %(default)s)")
    add("--kv-bytes-per-s", type=float, default=link.bytes_per_s, metavar="N", help="of the link (default %(default)g)")
    add("--kv-fixed-s", type=float, default=link.fixed_s, help="seconds of a transfer of any size")


def _wiring(parsed: argparse.Namespace) -> Wiring | None:
    if parsed.kv_connector is None:
        return None
    return Wiring(
        connector=parsed.kv_connector,
        role=ROLES[parsed.role],
        link=Link(parsed.kv_bytes_per_token, parsed.kv_bytes_per_s, parsed.kv_fixed_s),
        lease_s=parsed.kv_lease_s,
        recomputes=parsed.kv_load_failure_policy == "recompute",
        folder=parsed.kv_folder,
        side_port=parsed.kv_side_channel_port,
        bootstrap_port=parsed.kv_bootstrap_port,
    )


def _options(parsed: argparse.Namespace) -> Options:
    flags = {name: value for name in FLAGS if (value := getattr(parsed, name)) is not None}
    base = load_engine_profile(parsed.profile).engine if parsed.profile else Profile()
    profile = replace(base, by_priority=parsed.scheduling_policy == "priority", **flags)
    return Options(
        profile=profile,
        models=tuple(parsed.model or ("simulated",)),
        adapters=dict(each.partition("=")[::2] for each in parsed.lora),
        engines=parsed.engines,
        enable_expert_parallel=parsed.enable_expert_parallel,
        tasks=frozenset(parsed.task or ("generate",)),
        max_model_len=parsed.max_model_len,
        api_key=parsed.api_key,
        reports_cached_tokens=not parsed.no_prompt_tokens_details,
        max_num_queued_reqs=parsed.max_num_queued_reqs,
        accents=parsed.accents,
        max_reasoning_tokens=parsed.max_reasoning_tokens,
        calls_tools=parsed.calls_tools,
        min_answer_tokens=parsed.min_answer_tokens,
        max_answer_tokens=parsed.max_answer_tokens,
        load_s=parsed.load_s,
        wiring=_wiring(parsed),
    )


async def serve(pod: SimulatedPod) -> int:
    """Serve until told to stop (exit status 0) or made to die (1)."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with pod:
        print(pod.url, flush=True)
        waits = [asyncio.create_task(event.wait()) for event in (stopped, pod.died)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    return 1 if pod.died.is_set() else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one pod. Returns the exit status: 0 after a stop by signal, 1 after a fault that ended it."""
    options, host, port = parse_options(sys.argv[1:] if argv is None else argv)
    with suppress(KeyboardInterrupt):
        return uvloop.run(serve(SimulatedPod(options, host=host, port=port)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
