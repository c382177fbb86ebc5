"""The listener's certificate is loaded, checked and loaded anew."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.runtime.addresses import TlsFiles
from gateway.runtime.tls import check_certificate, load_certificate, reload_certificates, server_context
from tenancy.document import InvalidDocument
from tests.gateway.fake_pod import Pulse

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


def make_certificate(folder: Path, name: str, *, password: str | None = None) -> TlsFiles:
    """A certificate for `name`, signed by itself."""
    folder.mkdir(exist_ok=True)
    files = TlsFiles(folder / "cert.pem", folder / "key.pem")
    secrecy = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-days", "2"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = [
        "openssl",
        "req",
        "-x509",
        *curve,
        *secrecy,
        *subject,
        "-keyout",
        str(files.key),
        "-out",
        str(files.cert),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return files


async def name_seen(port: int, *trusted: TlsFiles) -> str:
    """Whose certificate a client is shown."""
    client = ssl.create_default_context()
    client.check_hostname = False
    for files in trusted:
        client.load_verify_locations(files.cert)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    return str(certificate["subjectAltName"][0][1])


async def test_a_reload_shows_new_clients_the_new_certificate(tmp_path: Path) -> None:
    """In the context that the listener already has."""
    old, new = make_certificate(tmp_path / "a", "old.example"), make_certificate(tmp_path / "b", "new.example")
    tls = server_context(old)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await name_seen(port, old) == "old.example"
        load_certificate(tls, new)
        assert await name_seen(port, new) == "new.example"


async def test_a_renewed_certificate_is_loaded_by_itself(tmp_path: Path) -> None:
    """Half of it is not; an error is told, and what fits at last is taken."""
    old, new = make_certificate(tmp_path / "a", "old.example"), make_certificate(tmp_path / "b", "new.example")
    tls, stated, pulse = server_context(old), list[str](), Pulse()

    def log_event(level: str, message: str, **_: object) -> None:
        stated.append(message)
        pulse.beat()

    task = asyncio.create_task(reload_certificates(tls, lambda: old, log_event, poll_s=0.01))
    await asyncio.sleep(0)  # it has seen the files as they are
    old.key.write_bytes(new.key.read_bytes())
    await pulse.until(lambda: stated[-1:] == ["certificate_reload_failed"])
    old.cert.write_bytes(new.cert.read_bytes())
    await pulse.until(lambda: stated[-1:] == ["certificate_reloaded"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_old_protocols_are_not_supported(tmp_path: Path) -> None:
    """TLS 1.2 at least, HTTP/1.1 only."""
    assert server_context(make_certificate(tmp_path, "a")).minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    """A key of another certificate, no PEM at all, a pass phrase: named before anything is changed."""
    one, two = make_certificate(tmp_path / "a", "a"), make_certificate(tmp_path / "b", "b")
    with pytest.raises(InvalidDocument, match="are no certificate and its key: KEY_VALUES_MISMATCH"):
        check_certificate(TlsFiles(one.cert, two.key))
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(InvalidDocument, match="are no certificate and its key"):
        check_certificate(TlsFiles(tmp_path / "junk", two.key))
    with pytest.raises(InvalidDocument, match="passphrase"):
        check_certificate(make_certificate(tmp_path / "c", "c", password="hunter2"))
