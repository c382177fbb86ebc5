"""Reads request headers: credentials, model override, latency objectives, retry count and session.

Headers about the caller count only from trusted proxies, identified by address. Every client may set latency
objectives, since they can only tighten the SLO of its tier.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from routing.rejection import Reason, RequestRejected
from tenancy.objective import LatencyObjective, Tier, objective_of

Networks = tuple[IPv4Network | IPv6Network, ...]

CALLER_HEADERS = frozenset(
    (
        *(b"x-llm-d-inference-objective", b"x-gateway-inference-objective"),
        *(b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id"),
        *(b"x-hearth-tenant", b"x-hearth-group", b"x-hearth-user", b"x-hearth-objective", b"x-hearth-priority"),
    )
)
"""Set by a proxy about the request it forwards. A policy may name others."""

MODEL_HEADERS = (b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite")
"""Model chosen by a proxy: llm-d's header, then its old name."""

MAX_MODEL_BYTES = 256

TTFT_HEADERS = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms", b"x-hearth-ttft-ms")
TPOT_HEADERS = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms", b"x-hearth-tpot-ms")
"""The first one present counts: llm-d's, its old name, ours."""

SLO_HEADERS = frozenset((*TTFT_HEADERS, *TPOT_HEADERS))

RETRY_COUNT_HEADER = b"x-stainless-retry-count"

SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id", b"session-id")
MAX_SESSION_BYTES = 256

MAX_MS = 86_400_000.0
"""One day."""

NUMBER = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,6})?")


LOCAL_ONLY_HEADER = b"x-hearth-local-only"
"""Any value but `false` keeps a request within the fleet."""

OFF_VALUES = frozenset((b"false", b"0", b"no"))


def is_local_only(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a client keeps its request within the fleet."""
    value = headers.get(LOCAL_ONLY_HEADER)
    return value is not None and value.strip().lower() not in OFF_VALUES


class TrustedProxies:
    """The networks of trusted proxies."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self.networks = tuple(networks)

    def __call__(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the peer of a connection is a trusted proxy; False if it has no IP address."""
        peer = transport.get_extra_info("peername")
        return isinstance(peer, tuple) and is_in_networks(peer[0], self.networks)


@lru_cache(maxsize=1024)
def is_in_networks(host: str, networks: Networks) -> bool:
    """Return whether an IP address lies in one of the networks; IPv4-mapped IPv6 counts as IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def requested_slo(tier: Tier, headers: Mapping[bytes, bytes]) -> LatencyObjective | None:
    """Return the SLO of a tier tightened by headers, None if they set none. Raises `RequestRejected` for invalid
    values.
    """
    if SLO_HEADERS.isdisjoint(headers):
        return None
    return objective_of(tier, ttft_s=_seconds(headers, TTFT_HEADERS), tpot_s=_seconds(headers, TPOT_HEADERS))


def model_override(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the model that a proxy has chosen, None if it has not. Raises `RequestRejected` for an invalid name."""
    for name in MODEL_HEADERS:
        if (value := headers.get(name)) is not None:
            if not 0 < len(value) <= MAX_MODEL_BYTES or not value.isascii():
                header = name.decode()
                raise RequestRejected(Reason.BAD_REQUEST, f"`{header}` must be a model name.", param=header)
            return value.decode("ascii")
    return None


def retry_count(headers: Mapping[bytes, bytes]) -> int:
    """Return how often the client has retried, as OpenAI's and Anthropic's libraries report it."""
    value = headers.get(RETRY_COUNT_HEADER, b"0")
    return int(value) if len(value) < 4 and value.isdigit() else 0


def api_key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the API key from `authorization` or `x-api-key`, None if there is none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    key = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return key.decode("utf-8", "surrogateescape") or None


VALID_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
"""What a client's own id of a request may be: printable ASCII without spaces."""


def client_request_id_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the client's own id of a request; None without a valid one."""
    named = headers.get(b"x-request-id")
    return named.decode("ascii") if named and VALID_REQUEST_ID.fullmatch(named) else None


def session_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the id of the session, None if the client sends none."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value and len(value) <= MAX_SESSION_BYTES:
            return value.decode("latin-1")
    return None


def _seconds(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> float | None:
    for name in names:
        value = headers.get(name)
        if value is None:
            continue
        found = float(value) if NUMBER.fullmatch(value) else 0.0
        if not 0 < found <= MAX_MS:
            header = name.decode()
            message = f"`{header}` must be a number of milliseconds, above 0 and at most 86400000."
            raise RequestRejected(Reason.BAD_REQUEST, message, param=header)
        return found / 1000
    return None
