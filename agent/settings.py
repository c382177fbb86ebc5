"""Settings of `hearth agent`: flags over environment variables; all faults are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent.hardware import own_address, read_labels
from gateway.config.fields import LOG_LEVELS, Secret, address_or_off, file, pod_url, redis_url, secret
from gateway.config.flags import Given, Word, read_said
from gateway.runtime.addresses import Address
from gateway.runtime.redis_location import RedisPlace, parse_redis_url
from routing.facts import BadFacts, read_facts
from routing.pod_record import LONGEST_TTL_S, is_agent_name
from tenancy.document import Fault, Invalid, Wrong, number, one_of, text

USUAL_LOADS = Address("127.0.0.1", 8126)

USUAL_PORTS = tuple(range(8000, 8010))

MOST_PORTS = 256


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Everything `hearth agent` can be configured with."""

    redis: RedisPlace
    name: str
    address: str
    """The host by which gateways reach the servers found here."""
    pods: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    said: Mapping[str, object] = field(default_factory=dict)
    """Facts from the label file and from flags."""
    ttl_s: float = 15.0
    look_s: float = 2.0
    drain_s: float = 10.0
    leaves: bool = True
    """Whether a stop deletes the record; otherwise it stays until the ttl, for the next agent to take over."""
    loads: Address | None = USUAL_LOADS
    pod_api_key: Secret | None = None
    log_level: str = "info"


def ports(value: object) -> tuple[int, ...]:
    """Parse `8000-8009,8100` or `off`. Raises `Wrong`."""
    found: list[int] = []
    for part in "" if value == "off" else text(value).split(","):
        low, _, high = part.strip().partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and 0 < int(low) <= int(high or low) < 1 << 16):
            raise Wrong(f"`{part}` is no port or range of ports")
        found.extend(range(int(low), int(high or low) + 1)[: MOST_PORTS + 1])
    if len(found) > MOST_PORTS:
        raise Wrong(f"at most {MOST_PORTS} ports")
    return tuple(found)


def agent_name(value: object) -> str:
    """Parse an agent's name, which is part of a Redis key. Raises `Wrong`."""
    if not is_agent_name(words := text(value)):
        raise Wrong("must be letters, digits, `.`, `_` and `-`, at most 128")
    return words


def seconds(least: float, most: float) -> Callable[[object], float]:
    """Return a parser of seconds within bounds."""

    def parse(value: object) -> float:
        try:
            found = number(float(value) if isinstance(value, str) else value)
        except ValueError:
            raise Wrong("must be a number of seconds") from None
        if not least <= found <= most:
            raise Wrong(f"must be from {least:g} to {most:g} seconds")
        return found

    return parse


FACTS = ("host", "rack", "zone", "region", "role", "prompts", "revision")
"""Facts of a pod that can be set by flags."""

ours = partial(Word, metavar="TEXT", by_file=True, prefix="HEARTH_AGENT_")
shared = partial(ours, prefix="HEARTH_")
"""A setting that gateways read from the same variable."""

WORDS: tuple[Word, ...] = (
    shared("redis", redis_url, "where pods are registered", metavar="URL"),
    ours("pod", pod_url, "a vLLM server, as gateways reach it; may stand several times", metavar="URL", many=True),
    ours("ports", ports, "local ports where servers are looked for, or off (default 8000-8009)", metavar="PORTS"),
    ours("address", text, "host by which gateways reach servers found here (default: this machine's)", metavar="HOST"),
    ours("name", agent_name, "of this agent, unlike all others (default: the host's name)", metavar="NAME"),
    ours("labels-file", file, "labels as the downward API writes them", metavar="FILE"),
    *(ours(name, text, f"fact of all servers here: {name}") for name in FACTS),
    ours("ttl", seconds(1, LONGEST_TTL_S), "forgotten after so long in silence (default 15)", metavar="SECONDS"),
    ours("look", seconds(0.2, 60), "between two looks at the servers (default 2)", metavar="SECONDS"),
    ours(
        "drain",
        seconds(0, 3600),
        "registered as draining for so long when told to stop (default 10)",
        metavar="SECONDS",
    ),
    ours("on-stop", one_of(("leave", "stay")), "take pods out, or let the next agent take over", metavar="leave|stay"),
    ours(
        "loads",
        address_or_off,
        "UDP on which engines tell their load, or off (default 127.0.0.1:8126)",
        metavar="HOST:PORT",
    ),
    ours("log-level", one_of(LOG_LEVELS), "least level that is logged (default info)", metavar="|".join(LOG_LEVELS)),
    shared("pod-api-key", secret, "what servers were given as --api-key (better by environment)", metavar="KEY"),
)


def gather(flags: Mapping[str, Given | None], variables: Mapping[str, str], host: str) -> AgentSettings:
    """Return the settings of a start. `host`: this machine's name. Raises `Invalid` with all faults."""
    faults: list[Fault] = []
    given = {"name": host, **read_said(WORDS, flags, variables, faults)}
    said = {"host": host, **_facts(given, faults)}
    if not is_agent_name(given["name"]):
        faults.append(Fault("--name", f"`{host}` cannot stand in a key: name it otherwise"))
    if "redis" not in given and not any("REDIS" in fault.path.upper() for fault in faults):
        faults.append(Fault("--redis", "is missing (or HEARTH_REDIS, HEARTH_REDIS_FILE)"))
    if faults:
        raise Invalid(faults)
    return AgentSettings(
        redis=parse_redis_url(given["redis"].value),
        address=given.get("address") or own_address(),
        ports=given.get("ports", () if "pod" in given else USUAL_PORTS),
        said=said,
        leaves=given.get("on_stop") != "stay",
        **{_FIELDS[word]: given[word] for word in _FIELDS if word in given},
    )


_FIELDS = {
    **{word: word for word in ("name", "loads", "pod_api_key", "log_level")},
    "pod": "pods",
    "ttl": "ttl_s",
    "look": "look_s",
    "drain": "drain_s",
}
"""Settings that are taken over unchanged, by the field they fill."""


def _facts(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, object]:
    """Merge labels and flags; flags override labels."""
    said: dict[str, object] = {}
    try:
        said |= read_labels(given["labels_file"]) if "labels_file" in given else {}
        said |= {word: given[word] for word in FACTS if word in given}
        read_facts(said)
    except BadFacts as bad:
        faults.extend(Fault("facts", fault) for fault in bad.faults)
    except (OSError, UnicodeDecodeError) as error:
        faults.append(Fault("--labels-file", f"cannot be read: {error}"))
    return said
