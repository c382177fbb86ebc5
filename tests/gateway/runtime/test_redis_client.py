"""A client reaches Redis whichever way a URL leads there: by socket, with TLS, through sentinels, into a cluster."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from gateway.runtime.redis_client import connect_redis
from gateway.runtime.redis_location import parse_redis_url
from tests.gateway.kv_index.exchange import alike, host, until
from tests.gateway.kv_index.redis_servers import Server, free_port, redis_server
from tests.gateway.replica_sync.test_redis_bridge import agree, bridge
from tests.gateway.replica_sync.test_redis_bridge import connected as are_connected
from tests.routing.engines import ask, place


async def writes_and_reads(url: str) -> bool:
    async with connect_redis(parse_redis_url(url), answer_s=5.0) as client:
        entry = await client.xadd("stream", {b"p": b"x"}, maxlen=10, approximate=True)
        streams = await client.xread({"stream": "0-0"}, 10, 10)
        return bool(entry) and len(streams) == 1


async def test_one_server_by_port_password_and_socket(tmp_path: Path) -> None:
    """The usual Redis; a wrong password is an error, and one in the URL is used."""
    socket_path = tmp_path / "redis.sock"
    async with redis_server(tmp_path, "--requirepass", "hunter2", "--unixsocket", str(socket_path)) as redis:
        where = f"127.0.0.1:{redis.port}"
        assert await writes_and_reads(f"redis://:hunter2@{where}/2")
        assert await writes_and_reads(f"unix://:hunter2@{socket_path}")
        with pytest.raises(RedisError):
            await writes_and_reads(f"redis://:wrong@{where}")


async def test_a_user_who_may_do_little_is_enough(tmp_path: Path) -> None:
    """Two commands on one key, as the documentation says; a host without workers shows that it is connected."""
    async with redis_server(tmp_path) as redis:
        await redis.log_event(
            "ACL", "SETUSER", "hearth", "on", ">hunter2", "~hearth:news", "+xadd", "+xread", "+select"
        )
        url = f"redis://hearth:hunter2@127.0.0.1:{redis.port}/1"
        async with host(tmp_path / "a", url) as here, host(tmp_path / "b", url) as there:
            await until(lambda: are_connected(here, there))
            await agree(here.worker(), there.worker())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make certificates")
async def test_tls_is_supported_and_the_certificate_is_checked(tmp_path: Path) -> None:
    """With the right authority it works, without it or under another name it does not."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    names = ("-addext", "subjectAltName=DNS:localhost")
    make = ("openssl", "req", *words, *names, "-keyout", str(key), "-out", str(cert))
    await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with redis_server(tmp_path) as redis:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Speak TLS for a Redis that cannot."""
            inner_reader, inner = await asyncio.open_connection("127.0.0.1", redis.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, inner))
                group.create_task(copy(inner_reader, writer))

        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert await writes_and_reads(f"rediss://localhost:{port}?ssl_ca_certs={cert}")
            assert await writes_and_reads(f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}&ssl_check_hostname=false")
            for rejected in (f"rediss://localhost:{port}", f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}"):
                with pytest.raises((RedisError, OSError)):
                    await writes_and_reads(rejected)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def sentinel_of(folder: Path, master: Server) -> AsyncIterator[Server]:
    """A sentinel that watches a master, alone, and soon takes it for dead."""
    config = folder / "sentinel.conf"
    lines = (
        f"sentinel monitor hearth 127.0.0.1 {master.port} 1",
        "sentinel down-after-milliseconds hearth 300",
        "sentinel failover-timeout hearth 1000",
    )
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sentinel = Server(folder / "sentinel", free_port(), ("--sentinel",), first=(str(config),))
    await sentinel.start()
    try:
        yield sentinel
    finally:
        await sentinel.kill()


async def test_sentinels_lead_to_the_master_and_to_the_next_one(tmp_path: Path) -> None:
    """Hosts that share through sentinels find the replica that took over, and agree again."""
    async with redis_server(tmp_path / "one") as master, redis_server(tmp_path / "two") as replica:
        await replica.log_event("REPLICAOF", "127.0.0.1", master.port)
        async with sentinel_of(tmp_path, master) as sentinel:
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/hearth"
            assert await writes_and_reads(url)
            async with host(tmp_path / "a", url) as here, host(tmp_path / "b", url) as there:
                one, other = here.worker(), there.worker()
                await until(lambda: are_connected(here, there))
                held = place(one.router, ask(), now_s=one.now_s())
                await until(lambda: alike(one, other))
                await knows_replica(sentinel)
                await master.kill()
                await until(lambda: not (bridge(here).reads or bridge(there).reads))
                await until(lambda: are_connected(here, there) and alike(one, other))
                held.release(one.now_s())
                await agree(one, other)


async def knows_replica(sentinel: Server) -> None:
    """Sentinels ask a master for its replicas every ten seconds; a reset of what they know is sooner."""
    async with asyncio.timeout(120):
        while not await sentinel.log_event("SENTINEL", "REPLICAS", "hearth"):
            await until(lambda: True)


async def test_a_cluster_is_found_from_one_of_its_nodes(tmp_path: Path) -> None:
    """Hosts share through a cluster as through one server."""
    async with redis_server(tmp_path, "--cluster-enabled", "yes") as node:
        await node.log_event("CLUSTER", "ADDSLOTS", *range(16384))
        async with asyncio.timeout(120):
            while b"cluster_state:ok" not in bytes(await node.log_event("CLUSTER", "INFO")):  # type: ignore[call-overload]
                await until(lambda: True)
        url = f"redis+cluster://127.0.0.1:{node.port}?prefix=blue:"
        assert await writes_and_reads(url)
        async with host(tmp_path / "a", url) as here, host(tmp_path / "b", url) as there:
            one, other = here.worker(), there.worker()
            await until(lambda: are_connected(here, there))
            await agree(one, other)
        assert await node.log_event("EXISTS", "blue:hearth:news") == 1


async def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """None of its nodes answers: the index process lives, says so, and shares when one does."""
    async with redis_server(tmp_path, "--cluster-enabled", "yes") as node:
        await node.kill()
        async with host(tmp_path / "a", f"redis+cluster://127.0.0.1:{node.port}") as here:
            await until(lambda: any(line[1] == "replica_sync_unavailable" for line in here.stated.lines))
            await node.start()
            await node.log_event("CLUSTER", "ADDSLOTS", *range(16384))
            await until(lambda: are_connected(here))
