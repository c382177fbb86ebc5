"""Plays the golden run: a whole gateway over simulated pods, by wires in memory and in virtual time.

The gateway is started as `hearth serve` starts it, and is seen from outside only: bytes on its ports, bytes at its
pods, its admin and metrics pages, its log, its usage records. So what is renamed within it changes nothing here.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from httptools import HttpRequestParser, HttpResponseParser
from prometheus_client.parser import text_string_to_metric_families

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.calibration_json import write_calibration_file
from gateway.app.serving import serve
from gateway.config.loading import load_settings
from simulator.faults import NO_FAULT, parse_fault
from simulator.options import Options
from simulator.pod import SimulatedPod
from simulator.profile import Profile
from simulator.transfer.wiring import KvRole, Wiring
from tests.golden.envoy import Passed, pass_all
from tests.golden.normal import Masks
from tests.golden.stillness import stilled
from tests.golden.traffic import DEEDS, ENVOY_DEEDS, Asked, Deed, all_asked, envoy_asked
from tests.golden.wires import HOST, Wires, pass_time, wired_aiohttp

SEED = 18

TRAFFIC, ADMIN, METRICS, EXTPROC = 8000, 8001, 8002, 8003

LOOK_S = 0.1
"""How often the ledger is looked at."""

QUIET_S = 20.0
"""After the last request, for all to end."""

Record = dict[str, Any]

POLICY: dict[str, Any] = {
    "tiers": {
        "gold": {"priority": 10, "ttft_s": 1.5, "ttft_uncached_factor": 2, "tpot_s": 0.06, "weight": 4,
                 "guaranteed_share": 0.3},
        "silver": {"priority": 0, "ttft_s": 3, "ttft_uncached_factor": 3, "tpot_s": 0.1, "weight": 2,
                   "max_queue_s": 3, "on_overload": "relax"},
        "bronze": {"priority": -10, "ttft_s": 6, "ttft_uncached_factor": 4, "tpot_s": 0.2, "max_queue_s": 2},
    },
    "tenants": {
        "gold": {"tier": "gold"},
        "silver": {"tier": "silver"},
        "bronze": {"tier": "bronze"},
        "capped": {"tier": "silver", "rpm": 12},
        "one": {"tier": "bronze", "max_parallel_requests": 1},
        "many": {"tier": "silver", "output_tpm": 900, "tpm": 6000},
        "narrow": {"tier": "silver", "models": ["main"]},
    },
}  # fmt: skip

FAST = Profile(step_base_s=0.008, prefill_tokens_per_s=9_000.0, max_num_seqs=24, kv_capacity_tokens=120_000)

PODS: tuple[tuple[int, Options, dict[str, Any]], ...] = (
    (9000, Options(models=("main",), profile=FAST, max_answer_tokens=80, keeps_responses=True), {}),
    (9001, Options(models=("main",), profile=FAST, max_answer_tokens=80, keeps_responses=True), {}),
    (9002, Options(models=("main",), profile=FAST, max_answer_tokens=80, engines=2, keeps_responses=True), {}),
    (9010, Options(models=("small",), profile=FAST, max_answer_tokens=60), {}),
    (9011, Options(models=("big",), profile=FAST, max_answer_tokens=60), {}),
    (9020, Options(models=("split",), profile=FAST, wiring=Wiring(role=KvRole.PRODUCER)), {"role": "prefill"}),
    (9021, Options(models=("split",), profile=FAST, wiring=Wiring(role=KvRole.CONSUMER)), {"role": "decode"}),
)


def policy_of(changed: dict[str, Any]) -> dict[str, Any]:
    """The policy with other words of some tenants. Each has one key: `sk-` and its name."""
    tenants = {name: words | changed.get(name, {}) for name, words in POLICY["tenants"].items()}
    keys = {name: [sha256(f"sk-{name}".encode()).hexdigest()] for name in tenants}
    return POLICY | {"tenants": tenants, "auth": {"keys": keys}}


def calibration_file() -> CalibrationFile:
    """A margin that some simulated answers reach and others do not."""
    cuts = (AcceptanceThreshold(0, ANY_BUCKET, 0.55, grey=0.02),)
    evidence = CalibrationEvidence(1000, "sha256:0", kept=0.5)
    return CalibrationFile(
        ("small", "big"), "margin", SignalStage.WINDOW, QualityGuarantee(0.02, 0.95), evidence, cuts, is_promised=True
    )  # fmt: skip


def settings_in(folder: Path, *, with_envoy: bool) -> Path:
    """Writes all files that the gateway reads; returns that of its settings."""
    (folder / "policy.yaml").write_text(json.dumps(policy_of({})))
    (folder / "auto.json").write_bytes(write_calibration_file(calibration_file()))
    auto: dict[str, Any] = {"models": ["small", "big"], "calibration": str(folder / "auto.json")}
    auto |= {"holdback": {"tokens": 8, "max_added_ttft_s": 0.4}, "shadow": {"share": 0.2}}
    if with_envoy:
        auto = {"models": ["small", "big"], "holdback": "off", "check_unary": False}
    settings: dict[str, Any] = {
        "listen": f"{HOST}:{TRAFFIC}",
        "admin_listen": f"{HOST}:{ADMIN}",
        "metrics_listen": f"{HOST}:{METRICS}",
        "policy": str(folder / "policy.yaml"),
        "usage_log": str(folder / "usage.jsonl"),
        # Diagnosis measures this machine's time and CPU.
        "doctor": {"mode": "off"},
        "discovery": {"static": {"pods": [{"url": f"http://{HOST}:{port}"} | more for port, _, more in PODS]}},
        "model_list": [
            {"model_name": "main", "input_cost_per_token": 2e-7, "output_cost_per_token": 8e-7},
            {"model_name": "small", "input_cost_per_token": 1e-7, "output_cost_per_token": 4e-7},
            {"model_name": "big", "input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6},
            {"model_name": "split", "input_cost_per_token": 2e-7, "output_cost_per_token": 8e-7,
             "kv_connector": "NixlConnector"},
            {"model_name": "auto", "cascade": auto},
        ],
    }  # fmt: skip
    if with_envoy:
        settings["extproc"] = {"listen": f"{HOST}:{EXTPROC}"}
    path = folder / "hearth.yaml"
    path.write_text(json.dumps(settings))
    return path


# -- what is heard -----------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """One request at a pod and its answer, as they were on the wire."""

    at_s: float
    port: int
    target: str = ""
    method: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    status: int = 0
    answered: int = 0
    """Bytes of the answer's body."""
    is_answered: bool = False


class Heard:
    """Callbacks of a parser, for one direction of a connection."""

    def __init__(self, port: int, now: Any) -> None:
        self._now, self._port = now, port
        self.exchanges: list[Exchange] = []
        self._answered = 0

    # Of requests.

    def on_url(self, url: bytes) -> None:
        if not self.exchanges or self.exchanges[-1].method:
            self.exchanges.append(Exchange(self._now(), self._port))
        self.exchanges[-1].target += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.exchanges[-1].headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.exchanges[-1].body += body


class Told:
    """Callbacks of a parser of answers."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._number = 0
        self.parser: Any = None

    @property
    def _exchange(self) -> Exchange:
        return self._heard.exchanges[min(self._number, len(self._heard.exchanges) - 1)]

    def on_headers_complete(self) -> None:
        self._exchange.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._exchange.answered += len(body)

    def on_message_complete(self) -> None:
        self._exchange.is_answered = True
        self._number += 1


class Taps:
    """Reads what goes to pods and what comes from them."""

    def __init__(self, loop: Wires, ports: Sequence[int]) -> None:
        self._loop, self._ports = loop, frozenset(ports)
        self._ways: dict[int, tuple[Heard, HttpRequestParser, HttpResponseParser]] = {}

    def __call__(self, number: int, port: int, is_client: bool, data: bytes) -> None:
        if port not in self._ports:
            return
        if number not in self._ways:
            heard = Heard(port, self._loop.time)
            told = Told(heard)
            told.parser = HttpResponseParser(told)
            self._ways[number] = heard, HttpRequestParser(heard), told.parser
        heard, asking, answering = self._ways[number]
        with suppress(Exception):  # A fault may have damaged what it says.
            if is_client:
                asking.feed_data(data)
                for exchange in heard.exchanges:
                    exchange.method = exchange.method or asking.get_method().decode()
            else:
                answering.feed_data(data)

    def exchanges(self) -> list[Exchange]:
        """All but the gateway's own looks at pods, in the order of their time."""
        found = [each for heard, _, _ in self._ways.values() for each in heard.exchanges if each.method == "POST"]
        return sorted(found, key=lambda each: (each.at_s, each.port, each.target, each.body))


@dataclass
class Answer:
    """What a client got."""

    began_s: float
    first_s: float | None = None
    ended_s: float = 0.0
    end: str = ""
    raw: bytes = b""
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


async def ask(asked: Asked) -> Answer:
    """One request on a connection of its own, at its time; the client leaves when it is to leave."""
    loop = asyncio.get_running_loop()
    await pass_time(asked.at_s - loop.time())
    answer = Answer(began_s=loop.time())
    parser = HttpResponseParser(answer)
    reader, writer = await asyncio.open_connection(HOST, TRAFFIC)
    leaving = loop.call_at(asked.leaves_at_s, writer.transport.abort) if asked.leaves_at_s is not None else None
    try:
        writer.write(asked.raw())
        while not answer.is_whole:
            data = await reader.read(1 << 16)
            if not data:
                has_left = asked.leaves_at_s is not None and loop.time() >= asked.leaves_at_s
                answer.end = "left" if has_left else "closed"
                break
            answer.first_s = loop.time() if answer.first_s is None else answer.first_s
            answer.raw += data
            parser.feed_data(data)
            if asked.leaves_after_bytes is not None and len(answer.raw) >= asked.leaves_after_bytes:
                answer.end = "left"
                break
        answer.end = answer.end or "whole"
    except ConnectionError:
        answer.end = "left" if asked.leaves_at_s is not None else "reset"
    finally:
        if leaving is not None:
            leaving.cancel()
        writer.transport.abort()
    answer.ended_s = loop.time()
    answer.status = parser.get_status_code() if answer.raw else 0
    return answer


async def page(port: int, path: str, body: Any = None) -> str:
    """What a page of the gateway says."""
    reader, writer = await asyncio.open_connection(HOST, port)
    said = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-length: {len(said)}\r\n\r\n"
    writer.write(head.encode() + said)
    answer = Answer(0.0)
    parser = HttpResponseParser(answer)
    while not answer.is_whole and (data := await reader.read(1 << 16)):
        parser.feed_data(data)
    writer.close()
    return answer.body.decode()


# -- the run -----------------------------------------------------------------------------------------------------------


class Run:
    """One gateway with its pods, and what is recorded of them."""

    def __init__(self, loop: Wires, folder: Path, logs: dict[str, list[bytes]]) -> None:
        self.loop, self.folder, self.logs = loop, folder, logs
        self.pods: list[SimulatedPod] = []
        self.ledger: list[Record] = []
        self.done: list[Record] = []
        self.taps = Taps(loop, [port for port, _, _ in PODS])
        loop.tap = self.taps

    @asynccontextmanager
    async def gateway(self, *, with_envoy: bool) -> AsyncIterator[None]:
        """All of it, from before the first pod to after the gateway's end."""
        config = settings_in(self.folder, with_envoy=with_envoy)

        def reread() -> Any:
            return load_settings({}, {}, config)

        async with AsyncExitStack() as stack:
            for port, options, _ in PODS:
                self.pods.append(await stack.enter_async_context(SimulatedPod(options, port=port)))
            serving = asyncio.create_task(serve(reread(), reread, {}))
            looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                for task in (looking, serving):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def _look(self) -> None:
        """Take down the ledger whenever it has changed."""
        await pass_time(0.9)
        before: Any = None
        while True:
            told = json.loads(await page(ADMIN, "/fleet"))
            held = {
                f"{pod['url']}/{number}": engine["own_load"]
                for pod in told["pods"]
                for number, engine in enumerate(pod["engines"])
                if any(engine["own_load"].values())
            }
            if held != before:
                self.ledger.append({"kind": "ledger", "at": self.loop.time(), "held": held})
                before = held
            await pass_time(LOOK_S)

    async def do(self, deeds: Sequence[Deed]) -> None:
        """One after the other, each at its time."""
        for deed in deeds:
            await pass_time(deed.at_s - self.loop.time())
            said: Any = None
            match deed.what:
                case "fault":
                    self.pods[deed.pod].set_fault(parse_fault(deed.said) if deed.said else NO_FAULT)
                case "stop":
                    await self.pods[deed.pod].stop()
                case "start":
                    await self.pods[deed.pod].start()
                case "policy":
                    (self.folder / "policy.yaml").write_text(json.dumps(policy_of(deed.said)))
                case "reload":
                    said = json.loads(await page(ADMIN, "/reload", {}))
                case _:
                    said = json.loads(await page(ADMIN, f"/pods/{deed.what}", {"pod": self.pods[deed.pod].url}))
            self.done.append({"kind": "deed", "at": deed.at_s, "what": deed.what, "said": said})

    def of_answer(self, asked: Asked, answer: Answer) -> Record:
        """What a client asked and got."""
        masks = Masks(str(self.folder))
        return {
            "kind": "answer",
            "name": asked.name,
            "tenant": asked.key,
            "path": asked.path,
            "at": answer.began_s,
            "first": answer.first_s,
            "ended": answer.ended_s,
            "end": answer.end,
            "status": answer.status,
            "headers": masks.value(answer.headers),
            "body": masks.body(answer.body),
        }

    def of_passed(self, asked: Asked, passed: Passed) -> Record:
        """What a client asked through Envoy, what the picker said of it, and what the client got."""
        masks = Masks(str(self.folder))
        return {
            "kind": "answer",
            "name": asked.name,
            "tenant": asked.key,
            "path": asked.path,
            "at": passed.began_s,
            "ended": passed.ended_s,
            "end": passed.end,
            "status": passed.status,
            "grpc_status": passed.grpc_status,
            "destination": passed.destination,
            "said": masks.value(passed.said),
            "sent": masks.body(passed.sent),
            "body": masks.body(passed.body),
        }

    def of_exchange(self, exchange: Exchange) -> Record:
        """What a pod was asked."""
        masks = Masks(str(self.folder))
        return {
            "kind": "asked",
            "at": exchange.at_s,
            "pod": exchange.port,
            "path": exchange.target,
            "headers": masks.value(exchange.headers),
            "body": masks.body(exchange.body),
            "status": exchange.status,
            "answered": exchange.is_answered,
        }

    async def pages(self) -> AsyncIterator[Record]:
        """What the gateway says of itself in the end."""
        for path in ("/receipts?limit=1000", "/limits?limit=1000", "/config", "/fleet"):
            told = json.loads(await page(ADMIN, path))
            for number, each in enumerate(_parts(told)):
                yield {"kind": "page", "path": path.partition("?")[0], "number": number} | {
                    "said": Masks(str(self.folder)).value(each)
                }
        for name, labels, value in samples(await page(METRICS, "/metrics")):
            yield {"kind": "metric", "name": name, "labels": labels, "value": value}

    def lines(self) -> Iterator[Record]:
        """What it has logged, but of the machine's limits."""
        for name in sorted(self.logs):
            for line in self.logs[name]:
                told = json.loads(line)
                if told.get("event") == "fd_limit_low":
                    continue
                yield {"kind": "line", "log": name, "said": Masks(str(self.folder)).value(told)}

    def on_wires(self) -> Iterator[Record]:
        """All that pods were asked, and what the ledger held."""
        yield from map(self.of_exchange, self.taps.exchanges())
        yield from ({**record, "held": Masks("").value(record["held"])} for record in self.ledger)
        yield from self.done


def _parts(told: Any) -> list[Any]:
    """The entries of a list, each a record; else all of it."""
    if isinstance(told, dict) and len(told) == 1 and isinstance(only := next(iter(told.values())), list):
        return sorted(only, key=lambda each: json.dumps(each, sort_keys=True)) if "account" in str(only)[:40] else only
    return [told]


UNTOLD = ("python_", "process_", "hearth_build", "hearth_loop", "hearth_process")
"""Families of the machine that it runs on."""


def samples(said: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Of a metrics page, but what follows the machine."""
    found = [
        (sample.name, dict(sample.labels), float(f"{sample.value:.6g}"))
        for family in text_string_to_metric_families(said)
        for sample in family.samples
        if not sample.name.startswith(UNTOLD) and not sample.name.endswith("_created")
    ]
    yield from sorted(found, key=lambda each: (each[0], sorted(each[1].items())))


async def play(loop: Wires, folder: Path, logs: dict[str, list[bytes]], asked: Sequence[Asked]) -> list[Record]:
    """The run over HTTP."""
    run = Run(loop, folder, logs)
    records: list[Record] = []
    async with run.gateway(with_envoy=False):
        doing = asyncio.create_task(run.do(DEEDS))
        answers = await asyncio.gather(*map(ask, asked))
        await doing
        await pass_time(QUIET_S)
        records += [run.of_answer(*pair) for pair in zip(asked, answers, strict=True)]
        records += [record async for record in run.pages()]
    return [*records, *run.on_wires(), *run.lines()]


async def play_envoy(loop: Wires, folder: Path, logs: dict[str, list[bytes]], asked: Sequence[Asked]) -> list[Record]:
    """The run behind Envoy: a cascade that only chooses where to begin, since answers cannot be held."""
    run = Run(loop, folder, logs)
    records: list[Record] = []
    async with run.gateway(with_envoy=True):
        doing = asyncio.create_task(run.do(ENVOY_DEEDS))
        passed = await pass_all(asked, f"{HOST}:{EXTPROC}")
        await doing
        await pass_time(QUIET_S)
        records += [run.of_passed(*pair) for pair in zip(asked, passed, strict=True)]
        records += [record async for record in run.pages()]
    return [*records, *run.on_wires(), *run.lines()]


@contextmanager
def a_wired_loop(seed: int) -> Iterator[tuple[asyncio.Runner, Wires, dict[str, list[bytes]]]]:
    """A loop in which all is the same each time."""
    with asyncio.Runner(loop_factory=Wires) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Wires)
        with stilled(loop.time, seed) as logs, wired_aiohttp(loop):
            yield runner, loop, logs


def tally(records: Sequence[Record]) -> dict[str, int]:
    """How many there are of each kind."""
    counts: dict[str, int] = defaultdict(int)
    for record in records:
        counts[record["kind"]] += 1
    return dict(counts)


def play_all() -> list[Record]:
    """The whole golden run, over HTTP and behind Envoy, each in a loop of its own."""
    records: list[Record] = []
    runs = (("http", play, all_asked(SEED)), ("envoy", play_envoy, envoy_asked(SEED)))
    for shell, plays, asked in runs:
        with TemporaryDirectory() as folder, a_wired_loop(SEED) as (runner, loop, logs):
            found = runner.run(plays(loop, Path(folder), logs, asked))
        records += [{"shell": shell, **record} for record in found]
    return records
