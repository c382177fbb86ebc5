"""The section `tracing`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.config import fields
from gateway.config.settings import read_settings
from gateway.config.tracing import AcceptParent, TracingConfig, read_headers


def read(section: dict[str, object]) -> tuple[TracingConfig | None, list[str]]:
    settings, root = read_settings(yaml.safe_dump({"tracing": section}), {})
    return settings.tracing, [str(error) for error in root.errors]


def test_all_keys_are_read(tmp_path: Path) -> None:
    """And the defaults, where only the endpoint is given."""
    file = tmp_path / "headers"
    file.write_text("api-key: secret\n")
    found, errors = read(
        {
            "endpoint": "https://collector:4318/otlp",
            "sample_ratio": 0.5,
            "accept_parent": "all",
            "headers_file": str(file),
            "service_name": "edge",
            "timeout_s": 3,
            "flush_s": 1,
        }
    )
    assert errors == []
    assert found == TracingConfig("https://collector:4318/otlp", 0.5, AcceptParent.ALL, file, "edge", 3.0, 1.0)
    assert read({"endpoint": "http://127.0.0.1:4318"}) == (TracingConfig("http://127.0.0.1:4318"), [])
    assert read_settings("{}", {})[0].tracing is None


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({}, "tracing.endpoint"),
        ({"endpoint": "collector:4318"}, "tracing.endpoint"),
        ({"endpoint": "grpc://collector:4317"}, "tracing.endpoint"),
        ({"endpoint": "http://user:password@collector"}, "tracing.endpoint"),
        ({"endpoint": "http://collector:99999"}, "tracing.endpoint"),
        ({"endpoint": "http://c", "sample_ratio": 1.5}, "tracing.sample_ratio"),
        ({"endpoint": "http://c", "accept_parent": "some"}, "tracing.accept_parent"),
        ({"endpoint": "http://c", "headers_file": "/nowhere/headers"}, "tracing.headers_file"),
        ({"endpoint": "http://c", "timeout_s": 0}, "tracing.timeout_s"),
        ({"endpoint": "http://c", "ratio": 1}, "tracing.ratio"),
    ],
)
def test_faults_are_named_with_their_path(section: dict[str, object], path: str) -> None:
    """No password of a URL is repeated."""
    _, errors = read(section)
    assert len(errors) == 1
    assert errors[0].startswith(path)
    assert "password@" not in errors[0]


def test_a_file_of_headers_is_checked_and_its_values_are_not_shown(tmp_path: Path) -> None:
    """The fault names the line."""
    file = tmp_path / "headers"
    file.write_bytes(b"# first\n\nApi-Key:  secret one \nx: y\n")
    assert read_headers(file) == {"api-key": "secret one", "x": "y"}
    for content in (b"secret", b"a b: secret", b"a: secret\x01", b"a: " + b"secret" * 20_000):
        file.write_bytes(content)
        _, errors = read({"endpoint": "http://c", "headers_file": str(file)})
        assert len(errors) == 1
        assert "secret" not in errors[0]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, before anything is served."""
    monkeypatch.setattr(fields, "find_spec", lambda _: None)
    _, errors = read({"endpoint": "http://127.0.0.1:4318"})
    assert errors == ["tracing: needs a library: pip install 'hearth-gateway[otel]'"]
