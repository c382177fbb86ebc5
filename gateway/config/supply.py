"""The section `supply`: desired engines, what may act on them, and the listener of KEDA's external scaler.

The policy of the decisions is `supply.policy.SupplyPolicy`; `listen`, `tls` and `min_gateways` are of the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gateway.config.fields import (
    ADDRESS_SCHEMA,
    NUMBER_SCHEMA,
    mutual_tls_schema,
    parse_address,
    parse_writable_path,
    read_mutual_tls,
    read_switch,
)
from gateway.runtime.addresses import Address, MutualTlsFiles
from supply.policy import (
    CONTROLS,
    REQUIRED_RAILS,
    ControlMode,
    InvalidSupplyPolicy,
    SupplyPolicy,
    read_supply_policy,
)
from tenancy.document import ConfigError, DocumentTable, InvalidValue, integer, number, positive
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import COUNT, FLAG, TEXT

MAX_POOLS = 256
"""Pools that a policy may name: each is a metric series per tier."""


@dataclass(frozen=True, slots=True)
class SupplyConfig:
    """The section as a value."""

    policy: SupplyPolicy = field(default_factory=SupplyPolicy)
    listen: Address | None = None
    """Of the external scaler; None: no listener."""
    tls: MutualTlsFiles | None = None
    """Of that listener."""
    min_gateways: int = 1
    """Gateway processes that must be seen for an answer, this one included."""
    state_file: Path | None = None
    """Where the memory of decisions is kept; None: it is lost with the last gateway."""

    @property
    def is_on(self) -> bool:
        """Return whether desired engines are computed at all."""
        return self.policy.scaling is not ControlMode.OFF

    @property
    def warms_pods(self) -> bool:
        """Return whether warm-ups are planned at all."""
        return self.policy.prewarm is not ControlMode.OFF


def read_supply(root: DocumentTable, pools: frozenset[str]) -> SupplyConfig | None:
    """Read `supply: true` or a mapping. Returns None if it is absent or false. `pools`: those of the list `pools`."""
    section = read_switch(root, "supply")
    if isinstance(section, bool):
        return SupplyConfig(_sendable(SupplyPolicy())) if section else None
    listen = section.get("listen", parse_address, None)
    tls = read_mutual_tls(section.table("tls"))
    min_gateways = section.get("min_gateways", positive(integer), 1)
    state_file = section.get("state_file", parse_writable_path, None)
    given = {key: section.get(key, _plain, None) for key in POLICY_KEYS if key in section}
    section.close()
    if tls is not None and listen is None:
        section.error("tls", "needs supply.listen: it is the certificate of that listener")
    named = given.get("pools")
    if isinstance(named, dict) and len(named) > MAX_POOLS:
        section.error("pools", f"names {len(named)} pools; at most {MAX_POOLS}")
    try:
        policy = read_supply_policy(given, pools=pools)
    except InvalidSupplyPolicy as invalid:
        root.errors.extend(ConfigError(fault.path, fault.problem) for fault in invalid.faults)
        return None
    return SupplyConfig(_sendable(policy), listen, tls, min_gateways, state_file)


def _sendable(policy: SupplyPolicy) -> SupplyPolicy:
    """Return the policy as a supervisor can send it to its workers: with a plain mapping of pools."""
    return replace(policy, pools=dict(policy.pools))


POLICY_KEYS = tuple(each.name for each in fields(SupplyPolicy))


def _plain(value: object) -> object:
    """Return a value with texts that are numbers, as variables are, as numbers."""
    if isinstance(value, dict):
        return {key: _plain(held) for key, held in value.items()}
    if isinstance(value, str):
        try:
            found = number(value)
        except InvalidValue:
            return value
        return int(found) if found == int(found) else found
    return value


def supply_schema() -> Schema:
    """Return the JSON Schema of the section."""
    modes: Schema = {"enum": [False, *(mode.value for mode in ControlMode)]}
    rails = {
        "min_engines": "Minimum number of engines.",
        "max_engines": "Maximum number of engines.",
        "max_step_per_minute": "Maximum change of the figure within a minute, up or down.",
        "engine_hours_per_day": "Budget of engine-hours in any 24 hours; beyond it the figure falls to min_engines.",
    }
    words = {
        "scaling": "Desired engines: off, advise (default) or act.",
        "spill": "Use of pools of higher rank: off, advise (default) or act.",
        "prewarm": "Warm-up of new pods: off, advise (default) or act.",
        "role_switch": "Changes of roles; this version only advises.",
        "drain": "Drain before a count falls; this version only advises.",
    }
    numbers = {
        "probability": "Share of requests that shall meet their objective (default 0.95).",
        "max_age_s": "Seconds after which figures are too old; the count is held then (default 90).",
        "min_completeness": "Share of gateways that must report; below it the count is held (default 1).",
        "min_stay_s": "Minimum seconds that an added engine stays (default 300).",
        "min_stay_prefill_s": "Minimum seconds that an added prefill engine stays (default 180).",
        "down_after_s": "Seconds for which a lower figure must hold before the count falls (default 180).",
        "down_margin": "Share of the count by which the figure must be lower for it to fall (default 0.05).",
        "idle_to_zero_s": "Seconds without a request after which a pool with min_engines 0 goes to zero (default 900).",
        "prewarm_max_s": "Maximum seconds of a new pod's warm-up (default 30).",
        "prewarm_max_tokens": "Maximum prompt tokens replayed to one engine (default 200000).",
        "prewarm_max_pods": "Pods warmed at once, by all gateways together (default 16).",
        "prewarm_kv_share": "Maximum share of an engine's KV blocks that replays fill (default 0.5).",
        "prewarm_keep_bytes": "Bytes of prompts kept for warm-ups, by process (default 16777216).",
        "prewarm_keep_s": "Maximum age of a kept prompt in seconds (default 600).",
        "grant_patience": "Start-up times without a granted engine after which the figure is not raised (default 4).",
    }
    return table(
        {
            **{name: described(modes, words[name]) for name in CONTROLS},
            **{name: described(NUMBER_SCHEMA, text) for name, text in numbers.items()},
            "use_forecast": described(FLAG.schema, "Scale ahead of a forecast peak (default true)."),
            "pools": described(
                {
                    "type": "object",
                    "additionalProperties": table(
                        {name: described(NUMBER_SCHEMA, rails[name]) for name in REQUIRED_RAILS}
                    ),
                },
                "Guard rails by pool; `default` is for all others.",
            ),
            "listen": described(ADDRESS_SCHEMA, "Listen address of KEDA's external scaler; absent: none."),
            "tls": described(
                mutual_tls_schema("CA certificates that KEDA's client certificate is verified against."),
                "PEM files of that listener.",
            ),
            "state_file": described(TEXT.schema, "File in which forecasts and the engine-hours of the day are kept."),
            "min_gateways": described(COUNT.schema, "Gateway processes that must be seen for an answer (default 1)."),
        }
    )
