"""What the configuration says of Envoy's port: whom it serves, and what is said where that is everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app.serving import warn_of_idle_settings
from gateway.config.extproc import ExtProcConfig
from gateway.config.fields import Secret
from gateway.config.settings import Settings, read_settings, show_settings
from gateway.runtime.addresses import Address, MutualTlsFiles
from gateway.runtime.event_log import EventLog

TLS = MutualTlsFiles(Path("cert"), Path("key"))


def read(source: str) -> tuple[Settings, list[str]]:
    settings, root = read_settings(source, {})
    return settings, [str(fault) for fault in root.errors]


def test_a_token_is_given_in_place_or_by_file(tmp_path: Path) -> None:
    """Not both; and it is shown to nobody."""
    (tmp_path / "token").write_text("by-file\n")
    for word, value in ((f"token_file: {tmp_path}/token", "by-file"), ("token: in-place", "in-place")):
        settings, faults = read(f"extproc: {{listen: '127.0.0.1:9002', {word}}}")
        assert faults == []
        assert settings.extproc is not None
        assert settings.extproc.token == Secret(value)
        assert value not in str(show_settings(settings))
    _, faults = read(f"extproc: {{listen: '127.0.0.1:9002', token: a, token_file: {tmp_path}/token}}")
    assert faults == ["extproc.token_file: conflicts with token; set only one"]


def test_the_authority_of_clients_is_a_file(tmp_path: Path) -> None:
    """Of the picker's port; the port of clients has no such word."""
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("x")
    tls = f"cert: {tmp_path}/cert, key: {tmp_path}/key"
    settings, faults = read(f"extproc: {{listen: '127.0.0.1:9002', tls: {{{tls}, client_ca: {tmp_path}/ca}}}}")
    assert faults == []
    assert settings.extproc is not None
    assert settings.extproc.tls == MutualTlsFiles(tmp_path / "cert", tmp_path / "key", tmp_path / "ca")
    _, faults = read(f"extproc: {{listen: '127.0.0.1:9002', tls: {{{tls}, client_ca: {tmp_path}/none}}}}")
    assert faults == [f"extproc.tls.client_ca: there is no file `{tmp_path}/none`"]
    _, faults = read(f"tls: {{{tls}, client_ca: {tmp_path}/ca}}")
    assert faults == ["tls.client_ca: unknown key"]


@pytest.mark.parametrize(
    ("words", "is_warned_of"),
    [
        (None, False),
        (ExtProcConfig(Address("127.0.0.1", 9002)), False),
        (ExtProcConfig(Address("localhost", 9002)), False),
        (ExtProcConfig(Address("0.0.0.0", 9002)), True),
        (ExtProcConfig(Address("::", 9002), tls=TLS), True),
        (ExtProcConfig(Address("::", 9002), token=Secret("x")), False),
        (ExtProcConfig(Address("::", 9002), tls=MutualTlsFiles(Path("cert"), Path("key"), Path("ca"))), False),
    ],
)
def test_a_port_that_serves_everybody_is_warned_of(words: ExtProcConfig | None, *, is_warned_of: bool) -> None:
    """Once, with the fix; not where only this machine reaches it, or callers show who they are."""
    stated: list[dict[str, Any]] = []

    def log_event(level: str, message: str, **more: object) -> None:
        stated.append({"level": level, "message": message, **more})

    warn_of_idle_settings(Settings(extproc=words), cast("EventLog", log_event))
    assert [line["level"] for line in stated] == ["warning"] * is_warned_of
    assert all("extproc.token" in line["fix"] for line in stated)
