"""`hearth shadow`: predicts from a copy of another gateway's traffic what Hearth would make of it. Forwards nothing.

The copies become a trace of sizes and hashed prefixes; no prompt is kept. The trace is played in virtual time, once
with a routing like the present one and once with Hearth's. Pods are only read: what their metrics say of the same time
is held against the first replay, so that the second one's error is known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from gateway.http.endpoints import PATHS
from routing.reading.requests import read_request
from routing.rejection import RequestRejected
from routing.request import Api
from simulator.engine_profile import load_engine_profile
from simulator.profile import Profile
from simulator.replay import Setting, play
from simulator.report import RoutingReport, report_on
from simulator.route_log import DIGEST_BYTES, RouteRow, trace_of_routes
from simulator.traces import Trace

PRESENT, OURS = "round-robin", "warm"

MAX_REQUESTS = 200_000
"""Of a recording; later ones are counted only."""

MAX_BODY_BYTES = 32 * 1024 * 1024

MEASURED = (Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES)

DEFAULT_OUTPUT_TOKENS = 256
"""Of an answer, where pods tell nothing."""

SESSION_HEADERS = ("x-session-id", "session-id", "x-claude-code-session-id")


# --- Recording --------------------------------------------------------------------------------------------------------


class Recording:
    """The requests received up to now, as sizes and keyed digests of their prefixes."""

    def __init__(self) -> None:
        self.rows: list[RouteRow] = []
        self.limits: list[int | None] = []
        """`max_tokens` of each row."""
        self.skipped = 0
        """Requests that could not be read, or came after the last that is kept."""
        self._blank = blake2b(digest_size=DIGEST_BYTES, key=token_bytes(32))

    def add(self, api: Api, body: bytes, session: str | None, at_s: float) -> None:
        """Add one request. `at_s`: any clock that only rises."""
        if len(self.rows) >= MAX_REQUESTS:
            self.skipped += 1
            return
        try:
            request = read_request(api, body, request_id="", session=session).request
        except RequestRejected:
            self.skipped += 1
            return
        blocks = b"".join(self._digest(block.to_bytes(8, "little")) for block in request.prompt.blocks)
        name = self._digest(request.session.encode()).hex() if request.session else None
        text = b64encode(blocks).decode("ascii")
        self.rows.append(RouteRow("", at_s, request.model, 0, 0, request.prompt.size, text, "", name))
        self.limits.append(request.max_tokens)

    def trace(self, seen: Seen) -> Trace:
        """Return the trace, with tokens by the measured bytes per token and the measured length of answers."""
        size = sum(row.prompt_bytes for row in self.rows)
        ratio = size / seen.prompt_tokens if seen.prompt_tokens else 4.0
        length = round(seen.output_tokens / seen.requests) if seen.requests else DEFAULT_OUTPUT_TOKENS
        for row, limit in zip(self.rows, self.limits, strict=True):
            row.input_tokens = max(1, round(row.prompt_bytes / ratio))
            row.output_tokens = max(1, min(length, limit or length))
        return trace_of_routes("mirrored traffic", self.rows)

    def _digest(self, text: bytes) -> bytes:
        digest = self._blank.copy()
        digest.update(text)
        return digest.digest()


def make_app(recording: Recording) -> web.Application:
    """Return the application that receives the copies and answers 204."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    by_path = {path: api for api in MEASURED for path in PATHS[api]}

    async def receive(request: web.Request) -> web.Response:
        api = by_path.get(request.path)
        if api is not None:
            session = next((request.headers[name] for name in SESSION_HEADERS if name in request.headers), None)
            recording.add(api, await request.read(), session, time.monotonic())
        return web.Response(status=204)

    app.router.add_route("*", "/{path:.*}", receive)
    return app


# --- What pods say ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What the metrics of all pods say of the recorded time; zeros and None where they say nothing."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    hit_ratio: float | None = None
    ttft_p50_s: float | None = None
    prefill_tokens_per_s: float | None = None
    step_s: float | None = None
    kv_capacity_tokens: int | None = None
    block_size: int | None = None


Samples = Mapping[tuple[str, str], float]
"""Values by name and `le` label, summed over engines; the cache's settings are under their own names."""


def read_samples(pages: Iterable[str]) -> Samples:
    """Return the samples of vLLM's metrics, summed over pages."""
    found: dict[tuple[str, str], float] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            if not family.name.startswith("vllm:"):
                continue
            for sample in family.samples:
                key = sample.name.removeprefix("vllm:"), sample.labels.get("le", "")
                found[key] = found.get(key, 0.0) + sample.value
                if sample.name == "vllm:cache_config_info":
                    for word in ("num_gpu_blocks", "block_size"):
                        with suppress(KeyError, ValueError):
                            found[word, ""] = float(sample.labels[word])
    return found


def difference(before: Samples, after: Samples) -> Seen:
    """Return what happened between two readings."""

    def grew(name: str, le: str = "") -> float:
        return after.get((name, le), 0.0) - before.get((name, le), 0.0)

    queries, hits = grew("prefix_cache_queries_total"), grew("prefix_cache_hits_total")
    prefill_s, steps = grew("request_prefill_time_seconds_sum"), grew("inter_token_latency_seconds_count")
    blocks, size = after.get(("num_gpu_blocks", "")), after.get(("block_size", ""))
    return Seen(
        requests=grew("request_success_total"),
        prompt_tokens=grew("prompt_tokens_total"),
        output_tokens=grew("generation_tokens_total"),
        hit_ratio=hits / queries if queries > 0 else None,
        ttft_p50_s=_median("time_to_first_token_seconds", before, after),
        prefill_tokens_per_s=(queries - hits) / prefill_s if prefill_s > 0 and queries > hits else None,
        step_s=grew("inter_token_latency_seconds_sum") / steps if steps > 0 else None,
        kv_capacity_tokens=round(blocks * size) if blocks and size else None,
        block_size=round(size) if size else None,
    )


def _median(name: str, before: Samples, after: Samples) -> float | None:
    """Return the median of a histogram's growth, linear within its bucket; None where it did not grow."""
    bounds = sorted((float(le), le) for found, le in after if found == f"{name}_bucket")
    counts = [after[f"{name}_bucket", le] - before.get((f"{name}_bucket", le), 0.0) for _, le in bounds]
    if not counts or counts[-1] <= 0:
        return None
    half, low_s, low = counts[-1] / 2, 0.0, 0.0
    for (bound_s, _), count in zip(bounds, counts, strict=True):
        if count >= half:
            return low_s if math.isinf(bound_s) else low_s + (bound_s - low_s) * (half - low) / max(count - low, 1.0)
        low_s, low = bound_s, count
    return None


def engine_of(seen: Seen, base: Profile, *, is_measured: bool) -> Profile:
    """Return the profile of an engine: as measured before, or with the speeds that its metrics show."""
    sizes: dict[str, float | int | None] = {
        "kv_capacity_tokens": seen.kv_capacity_tokens,
        "block_size": seen.block_size,
    }
    speeds: dict[str, float | int | None] = {
        "prefill_tokens_per_s": seen.prefill_tokens_per_s,
        "step_base_s": seen.step_s,
    }
    found = sizes if is_measured else sizes | speeds
    return replace(base, **{name: value for name, value in found.items() if value})  # type: ignore[arg-type]


# --- The prediction ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prediction:
    """One routing on the recorded traffic."""

    routing: str
    requests: int
    hit_ratio: float
    ttft_p50_s: float
    ttft_p95_s: float
    prefill_engine_s: float
    """Seconds of prefill of all engines together."""
    engines: int


def predict(trace: Trace, routing: str, engines: int, profile: Profile) -> Prediction:
    """Play a trace with a routing on so many engines."""
    report: RoutingReport = report_on(play(trace, Setting(routing, engines, profile)), profile)
    return Prediction(
        routing,
        report.requests,
        report.hit_ratio,
        report.ttft_s.p50,
        report.ttft_s.p95,
        sum(report.work_s.values()),
        engines,
    )


def engines_needed(trace: Trace, present: Prediction, profile: Profile) -> Prediction:
    """Return Hearth's prediction with the fewest engines whose TTFT (p95) is at most the present one's."""
    best = predict(trace, OURS, present.engines, profile)
    while best.engines > 1:
        fewer = predict(trace, OURS, best.engines - 1, profile)
        if fewer.ttft_p95_s > present.ttft_p95_s:
            break
        best = fewer
    return best


def describe(trace: Trace, seen: Seen, present: Prediction, ours: Prediction, fewest: Prediction) -> str:
    """Return the table, with the error of the present routing's prediction against what pods report."""

    def hours(prediction: Prediction) -> str:
        return f"{prediction.engines * trace.length_s / 3600:.2f}"

    engines = f"Engines for the present TTFT p95 with Hearth: {fewest.engines} of {present.engines}"
    engines += f" ({hours(fewest)} of {hours(present)} engine-hours)."
    lines = [
        f"{len(trace.arrivals)} requests in {trace.length_s:.0f} s, {present.engines} engines",
        f"{'':24}{'present, seen':>16}{'present, predicted':>20}{'error':>9}{'Hearth, predicted':>20}",
        _line("cached prompt tokens", seen.hit_ratio, present.hit_ratio, ours.hit_ratio, "{:.1%}"),
        _line("TTFT p50, s", seen.ttft_p50_s, present.ttft_p50_s, ours.ttft_p50_s, "{:.3f}"),
        _line("TTFT p95, s", None, present.ttft_p95_s, ours.ttft_p95_s, "{:.3f}"),
        _line("prefill, engine-seconds", None, present.prefill_engine_s, ours.prefill_engine_s, "{:.1f}"),
        "",
        engines,
        "Nothing is rejected in the prediction: that takes a policy.",
    ]
    return "\n".join(lines) + "\n"


def _line(name: str, seen: float | None, present: float, ours: float, form: str) -> str:
    error = f"{present / seen - 1:+.0%}" if seen else "-"
    shown = form.format(seen) if seen is not None else "-"
    return f"{name:24}{shown:>16}{form.format(present):>20}{error:>9}{form.format(ours):>20}"


# --- The command ------------------------------------------------------------------------------------------------------


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
        default=PRESENT,
        choices=(PRESENT, "least-loaded"),
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
    seen = difference(before, await read_pods(options.pod))
    if not recording.rows:
        print(
            f"hearth: no request could be read ({recording.skipped} received): mirror POST requests here",
            file=sys.stderr,
        )
        return 1
    return await asyncio.to_thread(conclude, options, recording, seen)


def conclude(options: argparse.Namespace, recording: Recording, seen: Seen) -> int:
    """Predict, print the table and write the report."""
    trace = recording.trace(seen)
    base = load_engine_profile(options.profile).engine if options.profile else Profile()
    profile = engine_of(seen, base, is_measured=options.profile is not None)
    present = predict(trace, options.present, len(options.pod), profile)
    ours = predict(trace, OURS, len(options.pod), profile)
    fewest = engines_needed(trace, present, profile)
    print(describe(trace, seen, present, ours, fewest), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    report = {
        "seen": asdict(seen),
        "present": asdict(present),
        "hearth": asdict(ours),
        "fewest_engines": asdict(fewest),
    }
    report["recording"] = {"requests": len(recording.rows), "skipped": recording.skipped}
    (options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


async def read_pods(pods: Sequence[str]) -> Samples:
    """Return the samples of all pods; those of a pod that does not answer are missing."""
    pages = list[str]()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
        for pod in pods:
            try:
                async with client.get(f"{pod.rstrip('/')}/metrics") as answer:
                    pages.append(await answer.text())
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"hearth: {pod}: no metrics: {error}", file=sys.stderr)
    return read_samples(pages)


if __name__ == "__main__":
    sys.exit(main())
