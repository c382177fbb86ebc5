"""Real programs in front of a gateway, as people put them there: nginx and Envoy, with connections to it kept alive.

For smuggling one connection to the gateway is kept and shared by all clients: whatever were left over on it by one of
them would be the answer of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tests.envoy import envoys
from tests.gateway.kv_index.redis_servers import free_ports

READY_S = 120.0

NGINX = """\
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log warn; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream hearth {{ {servers} keepalive {keeps}; }}
  server {{
    listen 127.0.0.1:{port};
    ignore_invalid_headers {heeds}; underscores_in_headers on;
    location / {{
      proxy_pass http://hearth; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_request_buffering {buffers};
      proxy_next_upstream {moves};
    }}
  }}
}}
"""


NEXT = "error timeout"
"""What nginx asks the next gateway for unless told: not for what is no GET and was sent already."""


@asynccontextmanager
async def nginx(
    *gateways: int, buffers: bool, keeps: int = 1, of_server: str = "", moves: str = NEXT
) -> AsyncIterator[int]:
    """One that keeps a body until it has all of it, or passes it on as it comes, and is as lenient as it can be told to
    be. Its port.
    """
    with TemporaryDirectory(prefix="hearth-nginx-") as kept:
        folder, (port,) = Path(kept), free_ports(1)
        servers = " ".join(f"server 127.0.0.1:{gateway} {of_server};" for gateway in gateways)
        words = {"folder": folder, "servers": servers, "keeps": keeps, "port": port, "heeds": "off", "moves": moves}
        configuration, log = folder / "nginx.conf", folder / "start.log"
        configuration.write_text(NGINX.format(**words, buffers="on" if buffers else "off"))
        program = await asyncio.create_subprocess_exec("nginx", "-c", str(configuration), "-e", str(log))
        try:
            await _until_it_listens(program, port, log)
            yield port
        finally:
            if program.returncode is None:
                program.terminate()
            await program.wait()


async def _until_it_listens(program: asyncio.subprocess.Process, port: int, log: Path) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            assert program.returncode is None, _told(log)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await envoys.a_moment()
            else:
                writer.close()
                return


def _told(log: Path) -> str:
    return log.read_text() if log.is_file() else ""


@asynccontextmanager
async def envoy(gateway: int) -> AsyncIterator[int]:
    """One that takes names of headers as they come. Its port."""
    async with envoys.running(_configuration(gateway)) as front:
        yield urlsplit(front.url).port or 0


def _configuration(gateway: int) -> dict[str, Any]:
    types = "type.googleapis.com/envoy.extensions.filters"
    router = {"@type": f"{types}.http.router.v3.Router"}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "hearth", "timeout": "0s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "common_http_protocol_options": {"headers_with_underscores_action": "ALLOW"},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "clients", "address": _address(0), "filter_chains": [{"filters": filters}]}
    place = {"endpoint": {"address": _address(gateway)}}
    cluster = {
        "name": "hearth",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "hearth", "endpoints": [{"lb_endpoints": [place]}]},
    }
    return {"admin": {"address": _address(0)}, "static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


FRONTS: dict[str, Callable[[int], AbstractAsyncContextManager[int]]] = {
    "nginx, whole bodies": lambda gateway: nginx(gateway, buffers=True),
    "nginx, bodies as they come": lambda gateway: nginx(gateway, buffers=False),
    "Envoy": envoy,
}
"""Each by the port of the gateway that it stands before."""
