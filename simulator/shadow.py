"""`hearth shadow`: predicts from a copy of another gateway's traffic what Hearth would make of it. Forwards nothing.

The copies become a trace of sizes and numbered prefixes; no prompt is kept. The trace is played in virtual time, once
with a routing like the present one and once with Hearth's. Pods are only read: engines are made to fit what their
metrics say of the same time, and what is left between the first replay and the metrics is the error to expect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from gateway.http.endpoints import PATHS
from routing.request import Api
from simulator.engine_profile import load_engine_profile
from simulator.profile import Profile
from simulator.shadowing.prediction import PRESENT, conclude, describe
from simulator.shadowing.readings import Seen, growth_of
from simulator.shadowing.recording import Recording

MAX_BODY_BYTES = 32 * 1024 * 1024

MEASURED = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)

SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id")


def make_app(recording: Recording) -> web.Application:
    """Return the application that receives the copies and answers 204."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    by_path = {path: api for api in MEASURED for path in PATHS[api]}

    async def receive(request: web.Request) -> web.Response:
        api = by_path.get(request.path)
        if api is not None:
            at_s = time.monotonic()
            session = next((request.headers[name] for name in SESSION_HEADERS if name in request.headers), None)
            recording.add(api, await request.read(), session, at_s)
        return web.Response(status=204)

    app.router.add_route("*", "/{path:.*}", receive)
    return app


def make_parser() -> argparse.ArgumentParser:
    """The flags of `hearth shadow`."""
    parser = argparse.ArgumentParser(
        prog="hearth shadow",
        description="Receive a copy of another gateway's traffic (nginx: mirror; Envoy: request_mirror_policies), "
        "forward nothing, and predict what Hearth would make of it. Experimental.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--listen", default="127.0.0.1:8090", metavar="HOST:PORT", help="for the copies (default %(default)s)")
    add(
        "--pod",
        action="append",
        required=True,
        metavar="URL",
        help="a vLLM server, of which metrics are read; repeatable",
    )
    add(
        "--minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="how long to record (default %(default)g); Ctrl-C ends it",
    )
    add(
        "--present",
        default=PRESENT[0],
        choices=PRESENT,
        help="the present routing (default %(default)s)",
    )
    add("--profile", type=Path, metavar="FILE", help="engine profile (default: speeds from the pods' metrics)")
    add(
        "--out",
        type=Path,
        default=Path("out/shadow"),
        metavar="DIR",
        help="folder of report.json (default %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0 with a prediction, 1 without requests."""
    options = make_parser().parse_args(argv)
    host, _, port = options.listen.rpartition(":")
    with suppress(KeyboardInterrupt):
        return uvloop.run(record(options, host, int(port)))
    return 130


async def record(options: argparse.Namespace, host: str, port: int) -> int:
    """Record, then predict and print."""
    recording, ended = Recording(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    before = await read_pods(options.pod)
    runner = web.AppRunner(make_app(recording), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        print(f"http://{host}:{runner.addresses[0][1]}", flush=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(options.minutes * 60):
                await ended.wait()
    finally:
        await runner.cleanup()
    seen = growth_of(before, await read_pods(options.pod))
    if not recording.rows:
        print(
            f"hearth: no request could be read ({recording.skipped} received): mirror POST requests here",
            file=sys.stderr,
        )
        return 1
    return await asyncio.to_thread(finish, options, recording, seen)


def finish(options: argparse.Namespace, recording: Recording, seen: Seen) -> int:
    """Predict, print the table and write the report."""
    base = load_engine_profile(options.profile).engine if options.profile else Profile()
    found = conclude(
        recording,
        seen,
        engines=len(options.pod),
        present=options.present,
        base=base,
        is_measured=options.profile is not None,
    )
    print(describe(found, seen), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    report = {
        "seen": {name: value for name, value in asdict(seen).items() if not isinstance(value, tuple)},
        "present": asdict(found.present),
        "hearth": asdict(found.ours),
        "fewest_engines": asdict(found.fewest),
        "engine": asdict(found.profile),
        "misfit": found.misfit,
        "recording": {"requests": len(recording.rows), "skipped": recording.skipped},
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


async def read_pods(pods: Sequence[str]) -> dict[str, str]:
    """Return the metrics page of each pod that answers."""
    pages = dict[str, str]()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
        for pod in pods:
            try:
                async with client.get(f"{pod.rstrip('/')}/metrics") as answer:
                    pages[pod] = await answer.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"hearth: {pod}: no metrics: {error}", file=sys.stderr)
    return pages


if __name__ == "__main__":
    sys.exit(main())
