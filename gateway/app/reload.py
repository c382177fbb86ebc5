"""Reloads settings, policy and certificate without losing a connection.

All or nothing: faults are reported, and the old configuration stays. Settings that need a restart are reported too.
Reading and applying are two steps: a supervisor reads once, and all its workers apply the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from gateway.app.gateway import Gateway
from gateway.cascades.cascade_config import configured_cascades
from gateway.config.settings import Settings
from gateway.discovery.source import StaticSource
from gateway.identity.policy import load_policy, watch_policy
from gateway.pairs.pairs import know_sizes
from gateway.runtime.tls import check_certificate, load_certificate
from tenancy.document import ConfigError, InvalidDocument
from tenancy.policy import Policy

RELOADABLE = frozenset(("pods", "models", "pools", "policy", "providers", "pod_api_key", "tls", "log_level"))
"""Settings that a reload applies."""

ReadSettings = Callable[[], Settings]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Settings as read, and the policy that they name."""

    settings: Settings
    policy: Policy | None


class Reloader:
    """Reloads one gateway. `variables` is the environment of its start."""

    def __init__(self, gateway: Gateway, reread: ReadSettings, variables: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._reread = reread
        self._variables = variables
        self._turn = asyncio.Lock()

    async def reload(self) -> dict[str, object]:
        """Reload once. Returns the result as JSON values."""
        gateway = self._gateway
        async with self._turn:
            reopen_logs(gateway)
            try:
                old = gateway.settings
                # Ten thousand tenants take seconds to read, and streams must go on meanwhile.
                fresh = await asyncio.to_thread(load_config, old, self._reread, self._variables)
                apply_reload(gateway, fresh)
            except InvalidDocument as invalid:
                faults = [str(fault) for fault in invalid.errors]
                gateway.reloads.note_config(is_successful=False)
                gateway.log_event("error", "reload_failed", errors=faults)
                return {"reloaded": False, "errors": faults}
            restart = needs_restart(old, fresh.settings)
            gateway.reloads.note_config(is_successful=True, needs_restart=restart)
            gateway.reloads.note_policy(is_successful=True)
            gateway.log_event("info", "reload_succeeded", needs_restart=restart)
            return {"reloaded": True, "needs_restart": restart}

    async def watch(self) -> None:
        """Apply every change of the policy file, until cancelled."""
        gateway = self._gateway

        async def renew(policy: Policy | None) -> list[str]:
            gateway.apply_policy(policy)
            return []

        keyring = gateway.keyring
        await watch_policy(
            lambda: gateway.settings,
            lambda: keyring.policy,
            renew,
            self._variables,
            log_event=gateway.log_event,
            on_reload=gateway.reloads.note_policy,
        )


def load_config(old: Settings, reread: ReadSettings, variables: Mapping[str, str]) -> LoadedConfig:
    """Read settings that may replace the old ones. Raises `InvalidDocument` if they may not."""
    new = reread()
    if old.policy and not new.policy:
        raise InvalidDocument(
            [
                ConfigError(
                    "policy", "was removed: all requests would be accepted; restart the gateway to run without a policy"
                )
            ]
        )
    policy = load_policy(new, variables)
    if new.tls and old.tls:
        check_certificate(new.tls)
    return LoadedConfig(new, policy)


def apply_reload(gateway: Gateway, fresh: LoadedConfig) -> None:
    """Apply a loaded configuration. Raises `InvalidDocument` before anything is changed."""
    new = fresh.settings
    if new.tls and gateway.tls:
        load_certificate(gateway.tls, new.tls)
    gateway.apply_policy(fresh.policy)
    gateway.pod_keys.key = new.pod_api_key.value if new.pod_api_key else None
    gateway.log_event.level = new.log_level
    gateway.model_entries.clear()
    gateway.model_entries.update(new.model_table)
    gateway.cascades.apply(configured_cascades(gateway.model_entries))
    _replace_pods(gateway, new)
    if gateway.providers is not None:
        gateway.providers.apply(new.providers)
    gateway.settings = effective_settings(gateway.settings, new)


def effective_settings(running: Settings, new: Settings) -> Settings:
    """Return the settings in force after a reload: the new ones as far as they need no restart."""
    live = RELOADABLE if running.tls and new.tls else RELOADABLE - {"tls"}
    if not running.providers.endpoints:
        live -= {"providers"}  # The first endpoint needs a restart.
    return replace(running, **{name: getattr(new, name) for name in live})


def reopen_logs(gateway: Gateway) -> None:
    """Reopen all log files, after a rotation."""
    for log in gateway.logs.values():
        log.writer.reopen()


def needs_restart(running: Settings, new: Settings) -> list[str]:
    """Return the names of changed settings that need a restart."""
    runs = effective_settings(running, new)
    return [field.name for field in fields(Settings) if getattr(runs, field.name) != getattr(new, field.name)]


def _replace_pods(gateway: Gateway, new: Settings) -> None:
    static = StaticSource(new.configured_pods)
    gateway.watcher.replace_source(gateway.static, static)
    gateway.static = static
    gateway.watcher.replace_models(new.model_table)
    know_sizes(gateway.router, new.model_table)
    if gateway.pod_file is not None:
        gateway.pod_file.reload_now()
