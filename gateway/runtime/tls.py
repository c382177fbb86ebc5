"""TLS of listeners. One context lives as long as the gateway; renewed certificates are loaded into it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from gateway.runtime.addresses import MutualTlsFiles, TlsFiles
from gateway.runtime.guard import report_exception, restarted
from tenancy.document import ConfigError, InvalidDocument

LogFunction = Callable[..., None]


def server_context(files: TlsFiles, *, speaks: str = "http/1.1") -> ssl.SSLContext:
    """Return a server context for one ALPN protocol. Raises `InvalidDocument` for an invalid certificate or key."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    # HTTP/2 to clients is left to Envoy or nginx in front.
    tls.set_alpn_protocols([speaks])
    load_certificate(tls, files)
    return tls


def load_certificate(tls: ssl.SSLContext, files: TlsFiles) -> None:
    """Load the certificate into a context; open connections keep theirs. Raises `InvalidDocument`."""
    try:
        tls.load_cert_chain(files.cert, files.key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        words = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise InvalidDocument(
            [ConfigError("tls", f"{files.cert} and {files.key} are no certificate and its key: {words}")]
        ) from None
    if isinstance(files, MutualTlsFiles) and files.client_ca is not None:
        _ask_for_clients(tls, files.client_ca)


def _ask_for_clients(tls: ssl.SSLContext, authorities: Path) -> None:
    """Accept only clients with a certificate of these authorities, beside those that are already trusted."""
    try:
        tls.load_verify_locations(cafile=authorities)
    except (ssl.SSLError, OSError, ValueError) as error:
        words = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise InvalidDocument(
            [ConfigError("tls", f"{authorities} holds no certificates of authorities: {words}")]
        ) from None
    tls.verify_mode = ssl.CERT_REQUIRED


def check_certificate(files: TlsFiles) -> None:
    """Raise `InvalidDocument` if the files cannot be loaded."""
    load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)


@restarted("certificate")
async def reload_certificates(
    tls: ssl.SSLContext, files: Callable[[], TlsFiles | None], log_event: LogFunction, *, poll_s: float = 30.0
) -> None:
    """Reload the certificate whenever its files change, until cancelled.

    Programs that renew certificates send no signal. Files that do not match yet are tried again.
    """
    loaded = _stamps(files())
    while True:
        await asyncio.sleep(poll_s)
        found, named = _stamps(files()), files()
        if named is None or found == loaded:
            continue
        try:
            check_certificate(named)
            load_certificate(tls, named)
        except InvalidDocument as invalid:
            log_event("error", "certificate_reload_failed", error=str(invalid))
        except Exception as error:  # noqa: BLE001 - reported; the files are read again at the next look
            report_exception("certificate", error)
        else:
            log_event("info", "certificate_reloaded", file=str(named.cert))
            loaded = found


def _stamps(files: TlsFiles | None) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    authorities = files.client_ca if isinstance(files, MutualTlsFiles) else None
    for path in (files.cert, files.key, *((authorities,) if authorities else ())) if files else ():
        try:
            held = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((held.st_ino, held.st_mtime_ns))
    return found


def _no_password() -> str:
    raise ValueError("the key is encrypted with a passphrase; provide an unencrypted key")
