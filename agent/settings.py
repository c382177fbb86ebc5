"""Settings of `hearth agent`: flags over environment variables; all faults are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent.hardware import facts_from_labels, own_address
from gateway.config.fields import (
    LOG_LEVELS,
    Secret,
    parse_address_or_off,
    parse_file,
    parse_pod_base_url,
    parse_redis_secret,
    parse_secret,
)
from gateway.config.flags import GivenValue, SettingSpec, read_overrides
from gateway.runtime.addresses import Address
from gateway.runtime.redis_location import RedisLocation, parse_redis_url
from routing.facts import InvalidFacts, read_facts
from routing.pod_record import MAX_TTL_S, is_agent_name
from tenancy.document import ConfigError, InvalidDocument, InvalidValue, number, one_of, text

DEFAULT_LOAD_LISTEN = Address("127.0.0.1", 8126)

DEFAULT_PORTS = tuple(range(8000, 8010))

MAX_PORTS = 256


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything `hearth agent` can be configured with."""

    redis: RedisLocation
    name: str
    address: str
    """The host by which gateways reach the servers found here."""
    pods: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    """Facts from the label file and from flags."""
    ttl_s: float = 15.0
    probe_interval_s: float = 2.0
    drain_s: float = 10.0
    deregisters: bool = True
    """Whether a stop deletes the record; otherwise it stays until the ttl, for the next agent to take over."""
    load_listen: Address | None = DEFAULT_LOAD_LISTEN
    pod_api_key: Secret | None = None
    log_level: str = "info"


def parse_ports(value: object) -> tuple[int, ...]:
    """Parse `8000-8009,8100` or `off`. Raises `InvalidValue`."""
    found: list[int] = []
    for part in "" if value == "off" else text(value).split(","):
        low, _, high = part.strip().partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and 0 < int(low) <= int(high or low) < 1 << 16):
            raise InvalidValue(f"`{part}` is no port or range of ports")
        found.extend(range(int(low), int(high or low) + 1)[: MAX_PORTS + 1])
    if len(found) > MAX_PORTS:
        raise InvalidValue(f"at most {MAX_PORTS} ports")
    return tuple(found)


def parse_agent_name(value: object) -> str:
    """Parse an agent's name, which is part of a Redis key. Raises `InvalidValue`."""
    if not is_agent_name(words := text(value)):
        raise InvalidValue("must be letters, digits, `.`, `_` and `-`, at most 128")
    return words


def parse_seconds(least: float, most: float) -> Callable[[object], float]:
    """Return a parser of seconds within bounds."""

    def parse(value: object) -> float:
        try:
            found = number(float(value) if isinstance(value, str) else value)
        except ValueError:
            raise InvalidValue("must be a number of seconds") from None
        if not least <= found <= most:
            raise InvalidValue(f"must be from {least:g} to {most:g} seconds")
        return found

    return parse


FACT_FLAGS = ("host", "rack", "zone", "region", "role", "prompts", "revision")
"""Facts of a pod that can be set by flags."""

agent_setting = partial(SettingSpec, metavar="TEXT", allows_file=True, prefix="HEARTH_AGENT_")
shared_setting = partial(agent_setting, prefix="HEARTH_")
"""A setting that gateways read from the same variable."""

SETTINGS: tuple[SettingSpec, ...] = (
    shared_setting("redis", parse_redis_secret, "where pods are registered", metavar="URL"),
    agent_setting(
        "pod",
        parse_pod_base_url,
        "a vLLM server, as gateways reach it; may stand several times",
        metavar="URL",
        is_list=True,
    ),
    agent_setting(
        "ports", parse_ports, "local ports where servers are looked for, or off (default 8000-8009)", metavar="PORTS"
    ),
    agent_setting(
        "address", text, "host by which gateways reach servers found here (default: this machine's)", metavar="HOST"
    ),
    agent_setting(
        "name", parse_agent_name, "of this agent, unlike all others (default: the host's name)", metavar="NAME"
    ),
    agent_setting("labels-file", parse_file, "labels as the downward API writes them", metavar="FILE"),
    *(agent_setting(name, text, f"fact of all servers here: {name}") for name in FACT_FLAGS),
    agent_setting(
        "ttl", parse_seconds(1, MAX_TTL_S), "forgotten after so long in silence (default 15)", metavar="SECONDS"
    ),
    agent_setting("look", parse_seconds(0.2, 60), "between two looks at the servers (default 2)", metavar="SECONDS"),
    agent_setting(
        "drain",
        parse_seconds(0, 3600),
        "registered as draining for so long when told to stop (default 10)",
        metavar="SECONDS",
    ),
    agent_setting(
        "on-stop", one_of(("leave", "stay")), "take pods out, or let the next agent take over", metavar="leave|stay"
    ),
    agent_setting(
        "loads",
        parse_address_or_off,
        "UDP on which engines tell their load, or off (default 127.0.0.1:8126)",
        metavar="HOST:PORT",
    ),
    agent_setting(
        "log-level", one_of(LOG_LEVELS), "least level that is logged (default info)", metavar="|".join(LOG_LEVELS)
    ),
    shared_setting(
        "pod-api-key", parse_secret, "what servers were given as --api-key (better by environment)", metavar="KEY"
    ),
)


def load_agent_settings(
    flags: Mapping[str, GivenValue | None], variables: Mapping[str, str], host: str
) -> AgentSettings:
    """Return the settings of a start. `host`: this machine's name. Raises `InvalidDocument` with all faults."""
    faults: list[ConfigError] = []
    given = {"name": host, **read_overrides(SETTINGS, flags, variables, faults)}
    said = {"host": host, **_facts(given, faults)}
    if not is_agent_name(given["name"]):
        faults.append(ConfigError("--name", f"`{host}` cannot stand in a key: name it otherwise"))
    if "redis" not in given and not any("REDIS" in fault.path.upper() for fault in faults):
        faults.append(ConfigError("--redis", "is missing (or HEARTH_REDIS, HEARTH_REDIS_FILE)"))
    if faults:
        raise InvalidDocument(faults)
    return AgentSettings(
        redis=parse_redis_url(given["redis"].value),
        address=given.get("address") or own_address(),
        ports=given.get("ports", () if "pod" in given else DEFAULT_PORTS),
        facts=said,
        deregisters=given.get("on_stop") != "stay",
        **{_FIELDS[word]: given[word] for word in _FIELDS if word in given},
    )


_FIELDS = {
    **{word: word for word in ("name", "pod_api_key", "log_level")},
    "loads": "load_listen",
    "pod": "pods",
    "ttl": "ttl_s",
    "look": "probe_interval_s",
    "drain": "drain_s",
}
"""Settings that are taken over unchanged, by the field they fill."""


def _facts(given: Mapping[str, Any], faults: list[ConfigError]) -> dict[str, object]:
    """Merge labels and flags; flags override labels."""
    said: dict[str, object] = {}
    try:
        said |= facts_from_labels(given["labels_file"]) if "labels_file" in given else {}
        said |= {word: given[word] for word in FACT_FLAGS if word in given}
        read_facts(said)
    except InvalidFacts as bad:
        faults.extend(ConfigError("facts", fault) for fault in bad.errors)
    except (OSError, UnicodeDecodeError) as error:
        faults.append(ConfigError("--labels-file", f"cannot be read: {error}"))
    return said
