"""Reads settings, policy and certificate again, and puts what is new in force without losing a connection.

All or nothing: what is wrong is named, and the old stays. What cannot change under a running gateway is named too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from gateway.build import Gateway, load_policy
from gateway.config.values import Settings
from gateway.discovery.static import Static
from gateway.tls import check_certificate, load_certificate
from tenancy.document import Fault, Invalid

LIVE = frozenset(("pods", "models", "policy", "pod_api_key", "tls", "log_level"))
"""Settings that a reload puts in force."""

Reread = Callable[[], Settings]


class Reloader:
    """Reloads one gateway. `variables` is the environment of its start."""

    def __init__(self, gateway: Gateway, reread: Reread, variables: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._reread = reread
        self._variables = variables

    async def reload(self) -> dict[str, object]:
        """What became of it, as JSON values."""
        gateway = self._gateway
        for log in gateway.logs.values():
            log.writer.reopen()
        try:
            needs_restart = self._reload()
        except Invalid as invalid:
            faults = [str(fault) for fault in invalid.faults]
            gateway.say("error", "reload refused, the old settings stay", faults=faults)
            return {"reloaded": False, "faults": faults}
        gateway.say("info", "reloaded", needs_restart=needs_restart)
        return {"reloaded": True, "needs_restart": needs_restart}

    def _reload(self) -> list[str]:
        """Names of the settings that have changed but want a restart. Raises `Invalid` before anything is changed."""
        gateway, new = self._gateway, self._reread()
        old = gateway.settings
        if old.policy and not new.policy:
            raise Invalid([Fault("policy", "is gone: that would let everybody in, so it wants a restart")])
        policy = load_policy(new, self._variables)
        if new.tls and gateway.tls:
            check_certificate(new.tls)
            load_certificate(gateway.tls, new.tls)
        gateway.keyring.policy = policy
        gateway.pod_keys.key = new.pod_api_key.value if new.pod_api_key else None
        gateway.say.level = new.log_level
        gateway.prices.clear()
        gateway.prices.update(new.model_table)
        self._replace_pods(new)
        gateway.settings = new
        return [
            field.name
            for field in fields(Settings)
            if getattr(old, field.name) != getattr(new, field.name)
            and (field.name not in LIVE or (field.name == "tls" and not (old.tls and new.tls)))
        ]

    def _replace_pods(self, new: Settings) -> None:
        gateway = self._gateway
        static = Static(new.static_pods)
        gateway.watcher.replace_source(gateway.static, static)
        gateway.static = static
        gateway.watcher.replace_models(new.model_table)
        if gateway.pod_file is not None:
            gateway.pod_file.look_now()
