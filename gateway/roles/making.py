"""Puts roles and canaries into a gateway that is being built."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from gateway.canary.watch import CanaryWatch
from gateway.config.redis_location import parse_redis_url
from gateway.gateway import Gateway
from gateway.roles.keeper import RoleKeeper
from gateway.roles.on_host import RolesOnHost
from gateway.roles.setup import RolesAtWork, Shared
from gateway.runtime.host import Host
from routing.canary import Rollout
from routing.decision.router import Router


def make_canaries(router: Router, say: Callable[..., None], clock: Callable[[], float]) -> CanaryWatch:
    """The watch over what is on trial; a router without canaries looks at nothing."""
    return CanaryWatch(router.rollout or Rollout(()), router.fleet, say, clock)


def keep_roles(gateway: Gateway, host: Host) -> None:
    """Let roles follow the traffic, where that is wanted."""
    terms, clock = gateway.settings.roles, asyncio.get_running_loop().time
    if terms is None:
        return
    shared: Shared | None = None
    if host.folder is not None:
        shared = RolesOnHost(host.folder, secrets.token_hex(8), time.monotonic)
    if gateway.settings.redis is not None:
        from gateway.roles.shared import SharedRoles  # noqa: PLC0415 - redis-py takes ten megabytes

        place = parse_redis_url(gateway.settings.redis.value)
        shared = in_redis = SharedRoles(place, secrets.token_hex(8), clock)
        gateway.background.append(in_redis.run)
    at_work = RolesAtWork(gateway.router, RoleKeeper(gateway.router, terms), shared, gateway.say, clock)
    gateway.background.append(at_work.run)
    gateway.registry.register(at_work)
