"""The gateways that are compared: how each is started in front of the same pods, and what it says it is."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.overhead.client import KEY, question

ROOT = Path(__file__).parents[2]
RIVALS = ROOT / ".venv-rivals" / "bin"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0
OUTPUT = "output"

NGINX = """\
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_max_body_size 64m; client_body_buffer_size 256k; keepalive_requests 1000000;
  upstream pods {{ {servers} keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://pods; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""

POLICY = """\
auth: {{keys: {{search: [{digest}], students: [{other}]}}}}
tiers:
  gold: {{priority: 10, ttft_s: 60, tpot_s: 10, weight: 8, guaranteed_share: 0.4, max_queue_s: 600}}
  bronze: {{priority: -10, max_queue_s: 600}}
tenants:
  search: {{tier: gold, rpm: 10000000, tpm: 100000000000, max_parallel_requests: 1000000}}
  students: {{tier: bronze, rpm: 600, tpm: 1000000}}
"""
"""A policy under which every account is charged and nothing is ever rejected."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A gateway that can be started."""

    name: str
    binary: str
    version: Callable[[], str]
    command: Callable[[int, Sequence[str], Path], list[str]]
    """Port to listen on, pods, a folder of its own."""
    how_to_get: str = ""
    root: Path = ROOT
    """The checkout that it is started in."""

    @property
    def is_there(self) -> bool:
        return shutil.which(self.binary) is not None


class Running:
    """A gateway under way."""

    def __init__(self, kind: Kind, port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.kind = kind
        self.port = port
        self._process = process
        self._folder = folder

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        """What it has said."""
        return (self._folder / OUTPUT).read_text(errors="replace")

    async def stop(self) -> None:
        """Ask it to go; make it go where it does not."""
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


async def start(kind: Kind, pods: Sequence[str], folder: Path) -> Running:
    """Start a gateway and wait until it answers. Raises `RuntimeError` where it does not."""
    running = _launch(kind, pods, folder)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + START_LIMIT_S
    while not await _answers(running.port):
        if not running.is_alive or loop.time() > give_up_s:
            await running.stop()
            raise RuntimeError(f"{kind.name} did not start:\n{running.output()[-2000:]}")
        await asyncio.sleep(0.2)
    return running


def _launch(kind: Kind, pods: Sequence[str], folder: Path) -> Running:
    folder.mkdir(parents=True)
    port = free_port()
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(kind.command(port, pods, folder), cwd=kind.root, stdout=output, stderr=output)
    return Running(kind, port, process, folder)


async def _answers(port: int) -> bool:
    body = b'{"model":"mock","messages":[{"role":"user","content":"hello"}],"max_tokens":1,"seed":0}'
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(question(body))
        answer = await reader.read(1 << 16)
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200")


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert isinstance(port, int)
        return port


def kinds() -> list[Kind]:
    """Ours first, then the floor, then the others."""
    return [
        Kind("hearth", sys.executable, _version, _hearth),
        Kind("hearth-open", sys.executable, _version, _open),
        Kind("nginx", "nginx", lambda: _output_of("nginx", "-v"), _nginx, "apt-get install nginx-light"),
        Kind("smg", str(RIVALS / "smg"), lambda: _wheel("smg"), _smg, "sh bench/rivals.sh"),
        Kind("vllm-router", str(RIVALS / "vllm-router"), lambda: _wheel("vllm-router"), _router, "sh bench/rivals.sh"),
    ]


def _version() -> str:
    return _output_of(sys.executable, "-m", "gateway", "--version")


def _hearth(port: int, pods: Sequence[str], folder: Path) -> list[str]:
    """With tenants, tiers and limits."""
    policy, key, another = folder / "policy.yaml", sha256(KEY), sha256(b"another")
    policy.write_text(POLICY.format(digest=key.hexdigest(), other=another.hexdigest()))
    return [*_open(port, pods, folder), "--policy", str(policy)]


def _open(port: int, pods: Sequence[str], folder: Path) -> list[str]:
    """Open to everybody."""
    named = [argument for pod in pods for argument in ("--pod", pod)]
    ports = ["--listen", f"127.0.0.1:{port}", "--metrics-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]
    return [sys.executable, "-m", "gateway", "serve", *ports, *named, "--usage-log", str(folder / "usage.jsonl")]


def _nginx(port: int, pods: Sequence[str], folder: Path) -> list[str]:
    servers = " ".join(f"server {pod.removeprefix('http://')};" for pod in pods)
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port, servers=servers))
    return ["nginx", "-c", str(configuration), "-e", str(folder / "start.log")]


def _smg(port: int, pods: Sequence[str], _: Path) -> list[str]:
    return [str(RIVALS / "smg"), "launch", *_rust(port, pods)]


def _router(port: int, pods: Sequence[str], _: Path) -> list[str]:
    return [str(RIVALS / "vllm-router"), *_rust(port, pods)]


def _rust(port: int, pods: Sequence[str]) -> list[str]:
    listen = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return [*listen, "--policy", "cache_aware", "--log-level", "error", "--worker-urls", *pods]


def _output_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).strip().rpartition(" ")[2].removeprefix("nginx/")


def _wheel(name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return _output_of(str(RIVALS / "python"), "-c", code)
