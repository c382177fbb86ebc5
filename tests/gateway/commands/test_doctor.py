"""`hearth doctor` and `hearth baseline`: exit statuses, text without control characters, and offline bundles."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnosis.facts import FleetFacts
from diagnosis.finding import Severity
from gateway.cli import main
from gateway.commands.doctor import FOUND, HEALTHY, UNKNOWN, format_findings, load_bundle, status_of
from gateway.config.doctor import DoctorMode
from gateway.diagnosis.doctor import NOT_LOOKED, Look
from gateway.diagnosis.view import InvalidBundle, show_bundle
from tenancy.document import InvalidValue

FINDING: dict[str, Any] = {
    "recipe": "kv_pressure",
    "title": "The cache is full\x1b[31m",
    "question": "decode",
    "severity": "degrading",
    "pool": "chat",
    "pods": ["http://a:1"],
    "confidence": 0.95,
    "evidence": [{"name": "preemptions", "value": 14.0, "compared": 1.0, "basis": "limit", "pod": "http://a:1"}],
    "cause": "c",
    "first_step": "one thing",
    "helped": "h",
    "wrong_if": "w",
    "since_s": 1795186398.25,
    "explained_by": "",
}


def view(*findings: dict[str, Any], question: str = "nothing", gaps: int = 0) -> dict[str, Any]:
    return {
        "mode": "advise",
        "first": {"question": question, "reason": "r", "seconds": {"decode": [1.5, 0.5]}},
        "findings": list(findings),
        "gaps": [{"recipe": "rdma_port_down", "pool": "chat", "pods": [], "reason": "not known"}] * gaps,
    }


def test_the_exit_status_says_what_was_found() -> None:
    """Advice is no fault; nothing found without an answer is unknown."""
    assert status_of(view()) == HEALTHY
    assert status_of(view(FINDING | {"severity": Severity.ADVICE.value})) == HEALTHY
    assert status_of(view(FINDING)) == status_of(view(FINDING | {"severity": "failing"})) == FOUND
    assert status_of(view(question="unknown")) == UNKNOWN


def test_a_finding_is_printed_with_its_first_step() -> None:
    """Names from pods cannot steer a terminal."""
    text = format_findings(view(FINDING, gaps=20))
    for part in ("degrading: The cache is full\\x1b[31m [kv_pressure], pool chat", "http://a:1", "one thing"):
        assert part in text
    assert "preemptions 14 (limit: 1) at http://a:1" in text
    assert "decode  1.500        0.500" in text
    assert "Not checked: 20" in text
    assert "and 8 more" in text
    assert "No finding." in format_findings(view())


def test_a_bundle_is_read_packed_and_plain(tmp_path: Path) -> None:
    """What is none is printed to be none."""
    body = show_bundle([Look(FleetFacts(1.0), NOT_LOOKED)], None, DoctorMode.ADVISE)
    plain, packed, broken = tmp_path / "plain", tmp_path / "packed", tmp_path / "broken"
    plain.write_bytes(body)
    packed.write_bytes(gzip.compress(body))
    assert load_bundle(plain) == load_bundle(packed)
    for damaged in (gzip.compress(body)[:40], gzip.compress(body)[:10] + b"\xff" * 30):
        broken.write_bytes(damaged)
        with pytest.raises(InvalidValue):
            load_bundle(broken)
    with pytest.raises(InvalidValue):
        load_bundle(tmp_path / "gone")
    plain.write_bytes(b"{}")
    with pytest.raises(InvalidBundle):
        load_bundle(plain)


def test_a_bundle_is_diagnosed_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a gateway."""
    file = tmp_path / "bundle"
    file.write_bytes(show_bundle([Look(FleetFacts(1.0), NOT_LOOKED)], None, DoctorMode.ADVISE))
    assert main(["doctor", "--bundle", str(file), "--json"]) == UNKNOWN
    assert json.loads(capsys.readouterr().out)["first"]["question"] == "unknown"
    assert main(["doctor", "--bundle", str(tmp_path / "gone")]) == 1
    file.write_bytes(show_bundle([], None, DoctorMode.ADVISE))
    assert main(["doctor", "--bundle", str(file)]) == 1
    assert "contains no facts" in capsys.readouterr().err


def test_the_gateway_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its URL or by its configuration."""
    config = tmp_path / "hearth.yaml"
    config.write_text('admin_listen: "off"\n')
    assert main(["doctor", "--config", str(config)]) == 1
    assert "admin_listen is off" in capsys.readouterr().err
    assert main(["doctor", "--config", str(config), "--url", "http://127.0.0.1:1"]) == 1
    config.write_text("admin_listen: 127.0.0.1:1\nadmin_token: secret-token\n")
    assert main(["doctor", "--config", str(config)]) == 1
    printed = capsys.readouterr().err
    assert "127.0.0.1:1" in printed
    assert "secret-token" not in printed
    with pytest.raises(SystemExit):
        main(["doctor", "--config", str(config), "--bundle", "x"])
