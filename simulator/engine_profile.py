"""An engine profile: a `Profile` with where it comes from and how far it may be off, as a YAML file.

Written by `hearth profile` (source `measured`) or computed from public figures (`computed`); read by `hearth simulate`
and by simulated pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from simulator.link import Link
from simulator.profile import Profile

VERSION = 1

MEASURED, COMPUTED = "measured", "computed"

UNVERIFIED = "unverified on this hardware"
"""What stands beside predictions from a profile that was computed, or was measured on other hardware."""

UNVERIFIED_SPREAD = 0.5
"""Relative error assumed of an engine's speeds where they were not measured."""

SPEEDS = (
    *("step_base_s", "step_per_sequence_s", "step_per_kv_token_s"),
    *("request_s", "request_token_s", "request_step_s", "request_step_token_s"),
    *("wake_s", "draft_s"),
)
"""Fields of `Profile` in seconds: what is slower has more of each."""


class ProfileError(ValueError):
    """An engine profile that cannot be read: the file and what is wrong in it."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Speeds and sizes of one engine, and what is known about them."""

    engine: Profile
    source: str
    """`measured` or `computed`."""
    hardware: str
    model: str = ""
    date: str = ""
    """ISO date of the measurement, empty where it was computed."""
    versions: Mapping[str, str] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    """Relative error of groups of observations (`prefill`, `decode`, `mixed`, `request`), as a fraction."""
    notes: tuple[str, ...] = ()
    link: Link | None = None
    """What transfers of KV to other engines take; None where none were seen."""

    def is_verified_on(self, hardware: str | None) -> bool:
        """Whether it was measured on this hardware; None names its own."""
        return self.source == MEASURED and hardware in (None, self.hardware)

    def spread_on(self, hardware: str | None) -> float:
        """Return the relative error to assume of every speed."""
        known = max(self.spread.values(), default=0.0)
        if self.is_verified_on(hardware):
            return known
        return max(UNVERIFIED_SPREAD, known if self.source == COMPUTED else 2 * known)


def slowed(profile: Profile, factor: float) -> Profile:
    """Return a profile of which everything takes `factor` times as long."""
    return replace(
        profile,
        prefill_tokens_per_s=profile.prefill_tokens_per_s / factor,
        host_load_tokens_per_s=profile.host_load_tokens_per_s / factor,
        step_table=tuple((tokens, seconds * factor) for tokens, seconds in profile.step_table),
        **{name: getattr(profile, name) * factor for name in SPEEDS},
    )


def load_engine_profile(path: Path) -> EngineProfile:
    """Read a file. Raises `ProfileError` where it is none, naming the key at fault."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise ProfileError(f"{path}: {fault}") from None
    try:
        return _parse(document)
    except (TypeError, ValueError) as fault:
        raise ProfileError(f"{path}: {fault}") from None


def _parse(document: Any) -> EngineProfile:
    if not isinstance(document, dict) or document.get("engine_profile") != VERSION:
        raise ValueError(f"engine_profile: wants version {VERSION}")
    known = {one.name for one in fields(EngineProfile)}
    if unknown := sorted(set(document) - known - {"engine_profile"}):
        raise ValueError(f"{unknown[0]}: no such key")
    if missing := [name for name in ("engine", "source", "hardware") if name not in document]:
        raise ValueError(f"{missing[0]}: is missing")
    if document["source"] not in (MEASURED, COMPUTED):
        raise ValueError(f"source: must be {MEASURED} or {COMPUTED}")
    texts = {name: str(document[name]) for name in ("source", "hardware", "model", "date") if name in document}
    return EngineProfile(
        engine=_parse_engine(document["engine"]),
        versions={str(name): str(version) for name, version in _mapping(document, "versions").items()},
        spread={str(name): _number(f"spread.{name}", part) for name, part in _mapping(document, "spread").items()},
        notes=tuple(str(note) for note in document.get("notes") or ()),
        link=_parse_link(_mapping(document, "link")),
        **texts,
    )


def _parse_link(link: dict[Any, Any]) -> Link | None:
    if not link:
        return None
    if unknown := sorted(set(link) - {one.name for one in fields(Link)}):
        raise ValueError(f"link.{unknown[0]}: no such key")
    numbers = {name: _number(f"link.{name}", value) for name, value in link.items()}
    if "bytes_per_token" in numbers:
        numbers["bytes_per_token"] = int(numbers["bytes_per_token"])
    try:
        return Link(**numbers)  # type: ignore[arg-type]
    except ValueError as fault:
        raise ValueError(f"link.{fault}") from None


def _parse_engine(engine: Any) -> Profile:
    if not isinstance(engine, dict):
        raise TypeError("engine: wants a mapping")
    known = {one.name: one.type for one in fields(Profile)}
    values: dict[str, Any] = {}
    for name, value in engine.items():
        if name not in known:
            raise ValueError(f"engine.{name}: no such key")
        if name == "step_table":
            values[name] = tuple((int(tokens), _number("engine.step_table", seconds)) for tokens, seconds in value)
        elif known[name] == "bool":
            values[name] = bool(value)
        elif known[name] == "str":
            values[name] = str(value)
        else:
            number = _number(f"engine.{name}", value)
            values[name] = int(number) if known[name] == "int" else number
    try:
        return Profile(**values)
    except ValueError as fault:
        raise ValueError(f"engine.{fault}") from None


def _mapping(document: dict[str, Any], name: str) -> dict[Any, Any]:
    value = document.get(name) or {}
    if not isinstance(value, dict):
        raise TypeError(f"{name}: wants a mapping")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: wants a number")
    return float(value)


def dump_engine_profile(profile: EngineProfile) -> str:
    """Return the file's text. Reading it gives the same profile, with seconds to five significant digits."""
    engine = {one.name: _plain(getattr(profile.engine, one.name)) for one in fields(Profile) if one.name in _STORED}
    document: dict[str, Any] = {
        "engine_profile": VERSION,
        "source": profile.source,
        "hardware": profile.hardware,
        "model": profile.model,
        "date": profile.date,
        "versions": dict(profile.versions),
        "spread": {name: round(part, 4) for name, part in profile.spread.items()},
        "notes": list(profile.notes),
        "link": {one.name: _plain(getattr(profile.link, one.name)) for one in fields(Link)} if profile.link else {},
        "engine": engine,
    }
    kept = {name: value for name, value in document.items() if value not in ("", {}, [])}
    return str(yaml.safe_dump(kept, sort_keys=False, width=110, default_flow_style=None))


_STORED = frozenset(one.name for one in fields(Profile)) - {"time_scale", "by_priority"}
"""What is the engine's own and not a choice of who plays it."""


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, tuple):
        return [[tokens, float(f"{seconds:.5g}")] for tokens, seconds in value]
    return value
