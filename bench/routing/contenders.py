"""The routers compared live, how each is started in front of pods of one kind, and why one cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.overhead.gateways import RIVALS, free_port
from bench.routing.redis import redis_binary

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Program:
    """One gateway program to start: where it will listen, and what to ask whether it has found all pods."""

    command: list[str]
    port: int
    ready: Ready

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ready:
    """A GET that answers with how many pods are usable."""

    url: str
    count: Callable[[dict[str, object]], int]


@dataclass(frozen=True, slots=True)
class Contender:
    """Programs that share the pods of one run; requests are spread over them by turns."""

    name: str
    programs: Callable[[Sequence[str], Path, str], list[Program]]
    """Of the pods' URLs, a folder, and the URL of a Redis where one is wanted."""
    lacks: Callable[[], str] = lambda: ""
    """Why it cannot be played here, empty where it can."""
    redis: bool = False
    """It wants a Redis of its own."""


def hearth(name: str = "hearth", *, copies: int = 1, redis: bool = False, arguments: Sequence[str] = ()) -> Contender:
    """`hearth serve` by default: only the pods' addresses are given."""

    def programs(pods: Sequence[str], folder: Path, redis_url: str) -> list[Program]:
        more = ["--redis", redis_url] if redis else []
        return [_hearth(pods, folder / f"{number}.jsonl", [*arguments, *more]) for number in range(copies)]

    return Contender(name, programs, _lacks_redis if redis else lambda: "", redis)


def _hearth(pods: Sequence[str], usage: Path, arguments: Sequence[str]) -> Program:
    port, admin = free_port(), free_port()
    ports = [
        "--listen",
        f"{LOOPBACK}:{port}",
        "--metrics-listen",
        f"{LOOPBACK}:0",
        "--admin-listen",
        f"{LOOPBACK}:{admin}",
    ]
    named = [argument for url in pods for argument in ("--pod", url)]
    command = [sys.executable, "-m", "gateway", "serve", *ports, *named, "--usage-log", str(usage), *arguments]
    return Program(command, port, Ready(f"http://{LOOPBACK}:{admin}/fleet", pods_in_fleet))


def rust(name: str, binary: str, policy: str, *before: str) -> Contender:
    """SMG or vllm-router, with its own defaults."""
    path = RIVALS / binary

    def programs(pods: Sequence[str], _folder: Path, _redis_url: str) -> list[Program]:
        port = free_port()
        listen = ["--host", LOOPBACK, "--port", str(port), "--prometheus-port", str(free_port())]
        arguments = [*listen, "--policy", policy, "--log-level", "error", "--worker-urls", *pods]
        ready = Ready(f"http://{LOOPBACK}:{port}/readiness", lambda body: int(str(body["healthy_workers"])))
        return [Program([str(path), *before, *arguments], port, ready)]

    return Contender(name, programs, lambda: "" if path.exists() else f"no {path.name}: sh bench/rivals.sh")


def pods_in_fleet(body: dict[str, object]) -> int:
    """How many are usable, by our own admin's word."""
    pods = body["pods"]
    assert isinstance(pods, list)
    return sum(pod["state"] == "ready" and bool(pod["engines"]) for pod in pods)


def _lacks_redis() -> str:
    return "" if redis_binary() else "no redis-server"


OURS = "hearth"

RIVALS_LIVE = ("smg cache_aware", "vllm-router cache_aware")
"""Whose better figure is the measure."""


def contenders() -> tuple[Contender, ...]:
    """The rows of the live table."""
    return (
        rust("smg round_robin", "smg", "round_robin", "launch"),
        rust(RIVALS_LIVE[0], "smg", "cache_aware", "launch"),
        rust(RIVALS_LIVE[1], "vllm-router", "cache_aware"),
        hearth(OURS),
        hearth("hearth, 4 replicas, Redis", copies=4, redis=True),
        hearth("hearth, 4 processes", arguments=("--processes", "4")),
    )
