"""Makes a gateway's pairs of what it has: the fleet, a session for asking pods, and what is configured of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import aiohttp

from gateway.config.models import ModelEntry
from gateway.pairs.bootstrap import BootstrapServers
from gateway.pairs.pairs import PairTransport
from gateway.pairs.unknown_senders import known_connectors
from routing.decision.router import Router


def make_pairs(
    router: Router,
    session: aiohttp.ClientSession,
    models: Mapping[str, ModelEntry],
    *,
    clock: Callable[[], float],
    say: Callable[..., None],
) -> PairTransport:
    """What carries pairs; the router is told which connectors there are, and how large a token's KV is."""
    router.pairing.connectors = known_connectors(say)
    know_sizes(router, models)
    return PairTransport(router.fleet, clock=clock, engine_ids=BootstrapServers(session, clock))


def know_sizes(router: Router, models: Mapping[str, ModelEntry]) -> None:
    """Take over what the configuration says of models' KV."""
    told = {name: entry.kv_bytes_per_token for name, entry in models.items()}
    router.pairing.kv_bytes = {name: float(size) for name, size in told.items() if size is not None}
