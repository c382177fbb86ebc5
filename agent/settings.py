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
            raise InvalidValue(f"`{part}` is not a port or a range of ports")
        found.extend(range(int(low), int(high or low) + 1)[: MAX_PORTS + 1])
    if len(found) > MAX_PORTS:
        raise InvalidValue(f"at most {MAX_PORTS} ports")
    return tuple(found)


def parse_agent_name(value: object) -> str:
    """Parse an agent's name, which is part of a Redis key. Raises `InvalidValue`."""
    if not is_agent_name(words := text(value)):
        raise InvalidValue("must be letters, digits, `.`, `_` and `-`, at most 128")
    return words


def parse_seconds(minimum: float, maximum: float) -> Callable[[object], float]:
    """Return a parser of seconds within bounds."""

    def parse(value: object) -> float:
        try:
            found = number(float(value) if isinstance(value, str) else value)
        except ValueError:
            raise InvalidValue("must be a number of seconds") from None
        if not minimum <= found <= maximum:
            raise InvalidValue(f"must be from {minimum:g} to {maximum:g} seconds")
        return found

    return parse


FACT_FLAGS = {
    **{name: name for name in ("host", "rack", "zone", "region", "role", "revision")},
    "image-digest": "image_digest",
    "prompt-class": "prompts",
}
"""Facts of a pod that can be set by flags: flag to fact."""

agent_setting = partial(SettingSpec, metavar="TEXT", allows_file=True, prefix="HEARTH_AGENT_")
shared_setting = partial(agent_setting, prefix="HEARTH_")
"""A setting that gateways read from the same variable."""

SETTINGS: tuple[SettingSpec, ...] = (
    shared_setting("redis", parse_redis_secret, "URL of the Redis in which pods are registered", metavar="URL"),
    agent_setting(
        "pod",
        parse_pod_base_url,
        "URL of a vLLM server, as gateways reach it; repeatable",
        metavar="URL",
        is_list=True,
    ),
    agent_setting(
        "ports", parse_ports, "local ports that are scanned for servers, or off (default 8000-8009)", metavar="PORTS"
    ),
    agent_setting(
        "address", text, "host by which gateways reach servers found here (default: this machine's)", metavar="HOST"
    ),
    agent_setting("name", parse_agent_name, "unique name of this agent (default: host name)", metavar="NAME"),
    agent_setting("labels-file", parse_file, "label file of the Kubernetes downward API", metavar="FILE"),
    *(
        agent_setting(name, text, f"{name} of all servers of this agent")
        for name in FACT_FLAGS
        if name not in ("prompt-class", "image-digest")
    ),
    agent_setting("image-digest", text, "digest of the container image of all servers, sha256:...", metavar="DIGEST"),
    agent_setting(
        "prompt-class",
        text,
        "prompts that all servers of this agent are for (default any)",
        metavar="long|short|any",
        former="prompts",
    ),
    agent_setting(
        "ttl",
        parse_seconds(1, MAX_TTL_S),
        "time to live of the registration without a heartbeat (default 15)",
        metavar="SECONDS",
    ),
    agent_setting(
        "probe-interval",
        parse_seconds(0.2, 60),
        "interval of probes of the servers (default 2)",
        metavar="SECONDS",
        former="look",
    ),
    agent_setting(
        "drain",
        parse_seconds(0, 3600),
        "time in state draining before a stop (default 10)",
        metavar="SECONDS",
    ),
    agent_setting(
        "on-stop",
        one_of(("deregister", "keep")),
        "at stop, deregister the pods or keep them for the next agent (default deregister)",
        metavar="deregister|keep",
    ),
    agent_setting(
        "load-listen",
        parse_address_or_off,
        "UDP listen address of load reports of engines, or off (default 127.0.0.1:8126)",
        former="loads",
        metavar="HOST:PORT",
    ),
    agent_setting("log-level", one_of(LOG_LEVELS), "minimum log level (default info)", metavar="|".join(LOG_LEVELS)),
    shared_setting("pod-api-key", parse_secret, "API key of the servers (better by environment)", metavar="KEY"),
)


def load_agent_settings(
    flags: Mapping[str, GivenValue | None], variables: Mapping[str, str], host: str
) -> AgentSettings:
    """Return the settings of a start. `host`: this machine's name. Raises `InvalidDocument` with all faults."""
    faults: list[ConfigError] = []
    given = {"name": host, **read_overrides(SETTINGS, flags, variables, faults)}
    values = {"host": host, **_facts(given, faults)}
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
        facts=values,
        deregisters=given.get("on_stop") != "keep",
        **{_FIELDS[word]: given[word] for word in _FIELDS if word in given},
    )


_FIELDS = {
    **{word: word for word in ("name", "pod_api_key", "log_level", "load_listen")},
    "pod": "pods",
    "ttl": "ttl_s",
    "probe_interval": "probe_interval_s",
    "drain": "drain_s",
}
"""Settings that are taken over unchanged, by the field they fill."""


def _facts(given: Mapping[str, Any], faults: list[ConfigError]) -> dict[str, object]:
    """Merge labels and flags; flags override labels."""
    values: dict[str, object] = {}
    try:
        values |= facts_from_labels(given["labels_file"]) if "labels_file" in given else {}
        values |= {
            fact: given[field] for flag, fact in FACT_FLAGS.items() if (field := flag.replace("-", "_")) in given
        }
        read_facts(values)
    except InvalidFacts as bad:
        faults.extend(ConfigError("facts", fault) for fault in bad.errors)
    except (OSError, UnicodeDecodeError) as error:
        faults.append(ConfigError("--labels-file", f"cannot be read: {error}"))
    return values
