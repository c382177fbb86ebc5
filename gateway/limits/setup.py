"""Makes a gateway's limits work: its own, and those it shares with the workers of its host or with all gateways."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping

from gateway.cluster.host_client import WarmthClient
from gateway.config.models import ModelEntry
from gateway.config.redis_location import parse_redis_url
from gateway.gateway import Gateway
from gateway.limits.accounts import Quotas
from gateway.limits.coordinator import Lender
from gateway.limits.estimate import Expecting
from gateway.limits.host_coordinator import HostLender
from gateway.limits.lease_keeper import Keeper
from gateway.pipeline.admission_queue import Room
from routing.decision.router import Router
from tenancy.forecast import Forecast


def make_quotas(
    router: Router,
    prices: Mapping[str, ModelEntry],
    room: Room,
    *,
    clock: Callable[[], float],
    draw: Callable[[], float],
) -> Quotas:
    """Limits of this gateway alone; their windows begin where the clock on the wall says."""
    seconds_to_epoch = time.time() - clock()
    return Quotas(
        Expecting(router, Forecast(shares=False), prices),
        clock=lambda: clock() + seconds_to_epoch,
        draw=draw,
        is_under_load=lambda: room.is_crowded,
    )


def share_limits(gateway: Gateway, client: WarmthClient) -> None:
    """With the gateways of all hosts by way of Redis, or with the other workers by way of the warmth process."""
    lender = _lender(gateway, client)
    if lender is None:
        return
    keeper = gateway.quotas.keeper = Keeper(
        lender,
        who=secrets.token_hex(8),
        processes=gateway.settings.processes,
        books=lambda: gateway.quotas.books,
        clock=gateway.quotas.now_s,
        say=gateway.say,
    )
    gateway.background.append(keeper.run)


def _lender(gateway: Gateway, client: WarmthClient) -> Lender | None:
    settings, draw = gateway.settings, random.Random().random  # noqa: S311 - spreads reconnects, keeps no secret
    if settings.redis is not None:
        from gateway.limits.redis_coordinator import RedisLender  # noqa: PLC0415 - redis-py takes ten megabytes

        return RedisLender(parse_redis_url(settings.redis.value), say=gateway.say, draw=draw)
    return HostLender(client) if settings.processes > 1 else None
