"""Findings as JSON values, and the support bundle: facts, baseline and findings of the last looks in one document.

A bundle holds what facts hold and nothing else: no prompt, key, path, command line or variable that is not listed in
`routing/server_settings.py`. `hearth doctor --bundle` reads it without a gateway.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct

from diagnosis.baseline import Baseline, InvalidBaseline, dump_baseline, load_baseline
from diagnosis.diagnose import DiagnosisState, Subject, diagnose
from diagnosis.facts import FleetFacts
from diagnosis.finding import Diagnosis, Finding
from diagnosis.request_times import RequestTimes, TrafficKey
from gateway.config.doctor import DoctorMode
from gateway.diagnosis.doctor import Doctor, Look

BUNDLE_SCHEMA = 1
"""Version of a bundle. A reader ignores keys that it does not know and rejects another version."""

MAX_BUNDLE_BYTES = 512 << 20


class InvalidBundle(ValueError):  # noqa: N818 - it carries a verdict on what was read
    """What is wrong with a bundle."""


class TrafficTimes(Struct):
    """Times of one kind of traffic."""

    key: TrafficKey
    times: RequestTimes


class RecordedFacts(Struct):
    """The facts of one look: those of JSON objects, and the times by kind of traffic, which have no text as key."""

    facts: FleetFacts
    times: list[TrafficTimes] = []


class SupportBundle(Struct):
    """What a support bundle holds."""

    schema: int
    versions: dict[str, str]
    mode: str
    looks: list[RecordedFacts]
    """Oldest first."""
    baseline: dict[str, Any] | None = None
    """As `hearth baseline save` writes it."""
    diagnosis: Diagnosis | None = None
    """Of the gateway, at the last look."""


def show_findings(doctor: Doctor) -> dict[str, Any]:
    """Return the result of the last look."""
    return {"mode": doctor.mode.value, **show_diagnosis(doctor.diagnosis)}


def show_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as JSON values."""
    shown: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return {**shown, "is_unknown": diagnosis.is_unknown}


def show_bundle(looks: Sequence[Look], baseline: Baseline | None, mode: DoctorMode) -> bytes:
    """Return the support bundle as JSON.

    Looks are encoded one by one: in a thread, requests are served between two of them.
    """
    return msgspec.json.encode(
        {
            "schema": BUNDLE_SCHEMA,
            "versions": {
                "hearth": version("hearth-gateway"),
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
            },
            "mode": mode.value,
            "looks": [msgspec.Raw(msgspec.json.encode(_recorded(look.facts))) for look in looks],
            "baseline": None if baseline is None else dump_baseline(baseline),
            "diagnosis": looks[-1].diagnosis if looks else None,
        }
    )


def read_bundle(body: bytes) -> SupportBundle:
    """Read a bundle. Raises `InvalidBundle`."""
    try:
        schema = msgspec.json.decode(body, type=_Schema).schema
        if schema != BUNDLE_SCHEMA:
            raise InvalidBundle(f"schema: is {schema}, this version reads {BUNDLE_SCHEMA}")
        return msgspec.json.decode(body, type=SupportBundle)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBundle(f"is no support bundle: {error}") from None


def diagnose_bundle(bundle: SupportBundle) -> Diagnosis | None:
    """Diagnose the facts of a bundle anew, look after look; None if it has none. Raises `InvalidBundle`.

    Evidence of what the gateway had found is as old as it was there: some must last for longer than a bundle has looks.
    """
    state, found = DiagnosisState(), None
    baseline = baseline_of(bundle)
    seen_s = {} if bundle.diagnosis is None else _seen(bundle.diagnosis.findings)
    for facts in facts_of(bundle):
        found, state = diagnose(facts, baseline, state, facts.at_s)
        aged = {
            subject: replace(track, since_s=min(track.since_s, seen_s.get(subject, track.since_s)))
            for subject, track in state.tracks.items()
        }
        state = DiagnosisState(aged)
    return found


def _seen(findings: Iterable[Finding]) -> dict[Subject, float]:
    """Return since when there was evidence against each subject of these findings, Unix time."""
    return {
        (finding.recipe, finding.pool, pod): finding.since_s for finding in findings for pod in finding.pods or ("",)
    }


def baseline_of(bundle: SupportBundle) -> Baseline | None:
    """Return the baseline of a bundle; None if it has none. Raises `InvalidBundle`."""
    try:
        return None if bundle.baseline is None else load_baseline(bundle.baseline)
    except InvalidBaseline as error:
        raise InvalidBundle(f"baseline: {error}") from None


def facts_of(bundle: SupportBundle) -> list[FleetFacts]:
    """Return the facts of a bundle's looks, oldest first."""
    return [replace(recorded.facts, times=_times(recorded.times)) for recorded in bundle.looks]


class _Schema(Struct):
    schema: int


def _recorded(facts: FleetFacts) -> RecordedFacts:
    times = [TrafficTimes(key, held) for key, held in facts.times.items()]
    return RecordedFacts(replace(facts, times={}), times)


def _times(held: Iterable[TrafficTimes]) -> Mapping[TrafficKey, RequestTimes]:
    return {each.key: each.times for each in held}
