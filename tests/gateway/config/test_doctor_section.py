"""The section `doctor`: modes as YAML reads them, findings by name."""

from pathlib import Path

import pytest

from gateway.config.doctor import DRAIN_FINDINGS, DoctorConfig, DoctorMode
from gateway.config.settings import Settings, read_settings


def read(source: str) -> tuple[Settings, list[str]]:
    settings, root = read_settings(source, {})
    return settings, [str(fault) for fault in root.errors]


@pytest.mark.parametrize(
    ("source", "mode"), [("{}", "advise"), ("mode: off", "off"), ("mode: act", "act"), ("mode: 'off'", "off")]
)
def test_a_mode_is_a_word_or_off(source: str, mode: str) -> None:
    """A plain `off` is false in YAML."""
    settings, faults = read(f"doctor:\n  {source}")
    assert (settings.doctor.mode, faults) == (DoctorMode(mode), [])


def test_findings_are_named(tmp_path: Path) -> None:
    """Those that do not exist are errors; an empty list drains for none."""
    settings, faults = read(f"doctor: {{drain_findings: [transfers_failing], baseline: {tmp_path}/b}}")
    assert (settings.doctor.drain_findings, settings.doctor.baseline, faults) == (
        ("transfers_failing",),
        tmp_path / "b",
        [],
    )
    assert read("doctor: {drain_findings: []}")[0].doctor.drain_findings == ()
    assert DoctorConfig().drain_findings == DRAIN_FINDINGS
    (fault,) = read("doctor: {drain_findings: [kv_presure], mode: advise}")[1]
    assert "did you mean `kv_pressure`?" in fault
    (fault,) = read("doctor: {mood: good}")[1]
    assert "doctor.mood" in fault


@pytest.mark.parametrize("finding", ["kv_pressure", "engine_stalled", "dp_rank_stalled"])
def test_findings_that_requests_bring_about_drain_nothing(finding: str) -> None:
    """One tenant could have a pod drained; the error says so, and what is permitted."""
    (fault,) = read(f"doctor: {{drain_findings: [{finding}]}}")[1]
    assert "doctor.drain_findings" in fault
    assert "one tenant could choose the pod" in fault
    assert "permitted are transfers_failing, rdma_port_down" in fault
    assert not {"kv_pressure", "engine_stalled", "dp_rank_stalled"} & set(DRAIN_FINDINGS)
