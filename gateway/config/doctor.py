"""The section `doctor`: whether the fleet is diagnosed, what findings may change, where the baseline is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from diagnosis.recipes.registry import BY_NAME, DRAINABLE
from gateway.config.fields import parse_writable_path
from tenancy.document import DocumentTable, InvalidValue, one_of, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import NAMES, TEXT

DRAIN_FINDINGS = ("rdma_port_down",)
"""Its evidence does not depend on the requests that a drained pod no longer receives."""


class DoctorMode(StrEnum):
    """What diagnosis does."""

    OFF = "off"
    ADVISE = "advise"
    """Findings are shown and change nothing but the price of constrained requests."""
    ACT = "act"
    """A pod whose finding allows it is drained while the evidence lasts."""


@dataclass(frozen=True, slots=True)
class DoctorConfig:
    """How the fleet is diagnosed."""

    mode: DoctorMode = DoctorMode.ADVISE
    baseline: Path | None = None
    """File in which the baseline is kept; None: it is lost with the process."""
    drain_findings: tuple[str, ...] = DRAIN_FINDINGS
    """Names of findings for which a pod may be drained in mode `act`."""
    single_services: tuple[str, ...] = ()
    """Addresses (HOST:PORT) of services of connectors behind which one process stands."""


def parse_mode(value: object) -> DoctorMode:
    """Parse a mode; YAML reads a plain `off` as false. Raises `InvalidValue`."""
    return DoctorMode(one_of(tuple(DoctorMode))(DoctorMode.OFF.value if value is False else value))


def parse_drain_finding(value: object) -> str:
    """Parse the name of a finding for which pods may be drained. Raises `InvalidValue`."""
    name = one_of(tuple(BY_NAME))(value)
    if name not in DRAINABLE:
        raise InvalidValue(
            f"{name}: no pod is drained for it, because requests alone can bring it about (one tenant could choose "
            f"the pod) or it names no fault of a pod; permitted are {', '.join(DRAINABLE)}"
        )
    return name


def read_doctor(root: DocumentTable) -> DoctorConfig:
    """Read the section; absent: the defaults."""
    section = root.table("doctor")
    if section is None:
        return DoctorConfig()
    named = section.each("drain_findings", parse_drain_finding)
    found = DoctorConfig(
        mode=section.get("mode", parse_mode, DoctorMode.ADVISE),
        baseline=section.get("baseline", parse_writable_path, None),
        drain_findings=DRAIN_FINDINGS if named is None else named,
        single_services=section.each("single_services", text) or (),
    )
    section.close()
    return found


def doctor_schema() -> Schema:
    """Return the JSON Schema of the section."""
    return table(
        {
            "mode": described(
                {"enum": [False, *DoctorMode]},
                "off; advise (default): findings are shown; act: a pod may be drained for its finding.",
            ),
            "baseline": described(TEXT.schema, "File in which the baseline is kept."),
            "drain_findings": described(
                {"type": "array", "items": {"enum": list(DRAINABLE)}},
                f"Findings for which a pod may be drained in mode act (default {', '.join(DRAIN_FINDINGS)}).",
            ),
            "single_services": described(
                NAMES.schema, "Addresses of services of KV connectors that belong to one process."
            ),
        }
    )
