"""Which callers the picker's port serves, and what is known of those that it rejects."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from gateway.config.fields import Secret
from gateway.ext_proc.server import CallerAuthenticator
from gateway.runtime.addresses import MutualTlsFiles, TlsFiles
from gateway.runtime.tls import check_certificate, reload_certificates, server_context
from tenancy.document import InvalidDocument
from tests.gateway.ext_proc.echoing import ECHO, echoing
from tests.gateway.ext_proc.speaking import calling
from tests.gateway.fake_pod import Pulse
from tests.gateway.runtime.test_tls import make_certificate

TOKEN = "a-token-of-some-length"
UNAUTHENTICATED = "16"

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


class Log:
    """Lines as they were logged, and a clock."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.now_s = 0.0

    def log_event(self, level: str, message: str, **more: object) -> None:
        self.lines.append((level, message, *(f"{name}={value}" for name, value in more.items())))

    def callers(self) -> CallerAuthenticator:
        return CallerAuthenticator(lambda: self.now_s, self.log_event)


@pytest.mark.parametrize(
    ("shown", "is_known"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (None, False),
        ("", False),
        (TOKEN, False),
        (f"Basic {TOKEN}", False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        ("Bearer", False),
        ("Bearer x", False),
    ],
)
async def test_a_token_is_requested_on_every_request(shown: str | None, *, is_known: bool) -> None:
    """Without it a request ends UNAUTHENTICATED, and nothing is begun for it; the connection stays."""
    log = Log()
    callers = log.callers()
    async with echoing(guard=callers.token_guard(Secret(TOKEN), ())) as port, calling(port.where) as caller:
        for _ in range(3):
            call = await caller.call(ECHO, fields=[] if shown is None else [("authorization", shown)])
            await call.log_event(b"Hi", ends=True)
            assert await call.status() == ("0" if is_known else UNAUTHENTICATED)
            assert call.messages == ([b"Hi"] if is_known else [])
        assert port.fates == (["ended"] * 3 if is_known else [])
    assert callers.rejected == {"token": 0 if is_known else 3, "certificate": 0}


async def test_some_paths_need_no_token() -> None:
    """Health: a probe has none."""
    guard = Log().callers().token_guard(Secret(TOKEN), {ECHO.encode()})
    async with echoing(guard=guard) as port, calling(port.where) as caller:
        call = await caller.call(ECHO)
        await call.log_event(b"Hi", ends=True)
        assert await call.status() == "0"


def test_a_rejected_caller_is_logged_once_a_minute_and_nothing_of_what_it_showed() -> None:
    """The fact alone; how often is a metric."""
    log = Log()
    callers = log.callers()
    guard = callers.token_guard(Secret(TOKEN), ())
    for now_s in (0.0, 1.0, 59.0, 61.0):
        log.now_s = now_s
        assert not guard({b"authorization": b"Bearer wrong", b":path": b"/"})
    assert log.lines == [("warning", "extproc_caller_rejected", "reason=token")] * 2
    assert callers.rejected["token"] == 4


def client_tls(shows: TlsFiles | None) -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_alpn_protocols(["h2"])
    if shows is not None:
        tls.load_cert_chain(shows.cert, shows.key)
    return tls


async def is_served(where: str, shows: TlsFiles | None) -> bool:
    """Whether a request over TLS is answered. A server may reject a certificate after its client has begun."""
    try:
        async with calling(where, tls=client_tls(shows)) as caller:
            if caller.is_over:
                return False
            call = await caller.call(ECHO)
            await call.log_event(b"Hi", ends=True)
            return await call.status() == "0"
    except (ssl.SSLError, ConnectionError):
        return False


@needs_openssl
async def test_a_client_certificate_of_the_authority_is_requested(tmp_path: Path) -> None:
    """Without one, or with one of somebody else, the handshake fails; that is counted and logged, and no more."""
    server, client, other = (make_certificate(tmp_path / name, f"{name}.example") for name in ("a", "b", "c"))
    log = Log()
    callers = log.callers()
    tls = server_context(MutualTlsFiles(server.cert, server.key, client.cert), speaks="h2")
    callers.watch_handshakes(tls)
    async with echoing(tls=tls) as port:
        assert await is_served(port.where, client)
        assert not await is_served(port.where, None)
        assert not await is_served(port.where, other)
        assert await is_served(port.where, client)
        assert port.fates == ["ended", "ended"]
    assert callers.rejected == {"token": 0, "certificate": 2}
    assert log.lines == [("warning", "extproc_caller_rejected", "reason=certificate")]


@needs_openssl
async def test_an_authority_that_is_added_is_read_again(tmp_path: Path) -> None:
    """As the certificate is: the clients of the new one are served without a restart."""
    server, old, new = (make_certificate(tmp_path / name, f"{name}.example") for name in ("a", "b", "c"))
    authorities = tmp_path / "ca"
    authorities.write_bytes(old.cert.read_bytes())
    files = MutualTlsFiles(server.cert, server.key, authorities)
    tls, pulse, stated = server_context(files, speaks="h2"), Pulse(), list[str]()

    def log_event(_: str, message: str, **__: object) -> None:
        stated.append(message)
        pulse.beat()

    async with echoing(tls=tls) as port:
        assert not await is_served(port.where, new)
        task = asyncio.create_task(reload_certificates(tls, lambda: files, log_event, poll_s=0.01))
        await asyncio.sleep(0)  # it has seen the files as they are
        authorities.write_bytes(old.cert.read_bytes() + new.cert.read_bytes())
        await pulse.until(lambda: stated == ["certificate_reloaded"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await is_served(port.where, new)
        assert await is_served(port.where, old)


@needs_openssl
def test_a_file_that_holds_no_authority_is_rejected(tmp_path: Path) -> None:
    """Before anything listens."""
    server = make_certificate(tmp_path / "a", "a.example")
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(InvalidDocument, match="holds no certificates of authorities"):
        check_certificate(MutualTlsFiles(server.cert, server.key, tmp_path / "junk"))
