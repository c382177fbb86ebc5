"""What a request's headers say: who asks, whom a proxy speaks for, in which conversation, and how soon.

Who speaks for others is believed by its address alone; how soon, everybody may say, as it can only tighten a promise.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from routing.rejection import Reason, Refused
from tenancy.objective import Promise, Tier, promise_of

Networks = tuple[IPv4Network | IPv6Network, ...]

SPEAKING = frozenset(
    (
        *(b"x-llm-d-inference-objective", b"x-gateway-inference-objective"),
        *(b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id"),
        *(b"x-hearth-tenant", b"x-hearth-group", b"x-hearth-user", b"x-hearth-objective", b"x-hearth-priority"),
    )
)
"""Said by a proxy of the request it passes on. A policy may name others."""

MODEL_HEADERS = (b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite")
"""Said by whoever has already decided which model is to answer: llm-d's, its old name."""

LONGEST_MODEL = 256

TTFT_HEADERS = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms", b"x-hearth-ttft-ms")
TPOT_HEADERS = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms", b"x-hearth-tpot-ms")
"""The first that is there counts: llm-d's, its old name, ours."""

DEADLINES = frozenset((*TTFT_HEADERS, *TPOT_HEADERS))

RETRIES = b"x-stainless-retry-count"

SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id", b"session-id")
LONGEST_SESSION = 256

LONGEST_TRACE = 512
"""As W3C Trace Context has it."""

LONGEST_MS = 86_400_000.0
"""A day."""

NUMBER = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,6})?")


class Trusted:
    """Tells connections of trusted proxies from all others."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    def __call__(self, transport: asyncio.BaseTransport) -> bool:
        """Whether whoever is at the other end may speak for others. Without an address nobody may."""
        if not self._networks:
            return False
        peer = transport.get_extra_info("peername")
        return isinstance(peer, tuple) and is_within(peer[0], self._networks)


@lru_cache(maxsize=1024)
def is_within(host: str, networks: Networks) -> bool:
    """Whether an address lies in one of these networks."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def promised(tier: Tier, headers: Mapping[bytes, bytes]) -> Promise | None:
    """What a tier promises, tightened by what headers ask for; None where they ask for nothing. Raises `Refused`."""
    if DEADLINES.isdisjoint(headers):
        return None
    return promise_of(tier, ttft_s=_seconds(headers, TTFT_HEADERS), tpot_s=_seconds(headers, TPOT_HEADERS))


def decided_model(headers: Mapping[bytes, bytes]) -> str | None:
    """The model that is to answer instead of the one asked for; None where nobody has decided. Raises `Refused`."""
    for name in MODEL_HEADERS:
        if (value := headers.get(name)) is not None:
            if not 0 < len(value) <= LONGEST_MODEL or not value.isascii():
                word = name.decode()
                raise Refused(Reason.BAD_REQUEST, f"`{word}` must be the name of a model.", param=word)
            return value.decode("ascii")
    return None


def retries(headers: Mapping[bytes, bytes]) -> int:
    """How often the client says that it has asked before, as OpenAI's and Anthropic's libraries do."""
    said = headers.get(RETRIES, b"0")
    return int(said) if len(said) < 4 and said.isdigit() else 0


def key_shown(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's key, as OpenAI's clients send it or as Anthropic's do."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return key.decode("utf-8", "surrogateescape") or None


def session_of(headers: Mapping[bytes, bytes]) -> str | None:
    """What the client calls the conversation."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value and len(value) <= LONGEST_SESSION:
            return value.decode("latin-1")
    return None


def trace_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The W3C `traceparent` that came with a request."""
    trace = headers.get(b"traceparent")
    return trace.decode("latin-1") if trace and len(trace) <= LONGEST_TRACE else None


def _seconds(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> float | None:
    for name in names:
        value = headers.get(name)
        if value is None:
            continue
        found = float(value) if NUMBER.fullmatch(value) else 0.0
        if not 0 < found <= LONGEST_MS:
            word = name.decode()
            raise Refused(Reason.BAD_REQUEST, f"`{word}` must be milliseconds, above 0 and at most a day.", param=word)
        return found / 1000
    return None
