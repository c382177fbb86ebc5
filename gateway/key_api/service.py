"""The key API of one gateway: its parts, built from the configuration, and its listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import aiohttp
from aiohttp import web

from gateway.config.key_api import KeyApiConfig
from gateway.identity.issuer import TokenIssuer
from gateway.key_api.actors import Actor, UnknownActor, actor_of_certificate, actor_of_token
from gateway.key_api.api import KeyApi, bearer_token
from gateway.key_api.audit import AuditLog
from gateway.key_api.key_store import FolderKeyStore, KeyStore
from gateway.runtime.event_log import EventLog
from gateway.runtime.ports import serve_app
from gateway.runtime.tls import reload_certificates, server_context
from tenancy.policy import Policy


class KeyApiService:
    """Serves the key API until cancelled."""

    def __init__(
        self,
        config: KeyApiConfig,
        session: aiohttp.ClientSession,
        *,
        policy: Callable[[], Policy | None],
        log_event: EventLog,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        store: KeyStore | None = None,
    ) -> None:
        """`store`: by default the folder. Raises `InvalidDocument` for an invalid certificate."""
        self._config = config
        self._log_event = log_event
        self._wall_clock = wall_clock
        self._tls: ssl.SSLContext | None = server_context(config.tls) if config.tls is not None else None
        self._issuer = TokenIssuer(session, log_event=log_event, clock=clock)
        if config.oidc is not None:
            self._issuer.use_rules(config.oidc.rules, lambda: None)
        self._api = KeyApi(
            store or FolderKeyStore(config.keys_dir),
            AuditLog(config.audit_log, wall_clock),
            identify=self.identify,
            policy=policy,
            wall_clock=wall_clock,
            log_event=log_event,
        )

    def identify(self, request: web.Request) -> Actor:
        """Return the actor of a request: of its token or, without one, of its certificate."""
        config, token = self._config, bearer_token(request.headers)
        if token is not None and config.oidc is not None:
            return actor_of_token(
                token, config.oidc, self._issuer.keys, self._wall_clock(), self._issuer.request_refresh
            )
        certificate = request.get_extra_info("peercert")
        if token is not None or not certificate or not config.clients:
            raise UnknownActor("Send a token as `Authorization: Bearer TOKEN`, or a client certificate with a role.")
        return actor_of_certificate(certificate, config.clients)

    async def run(self) -> None:
        """Listen until cancelled. Raises `CannotListen`."""
        runner, at = await serve_app("key_api", self._api.app(), self._config.listen, self._tls)
        self._log_event("info", "key_api_listening", listen=at)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._issuer.run())
                if self._tls is not None:
                    tasks.create_task(reload_certificates(self._tls, lambda: self._config.tls, self._log_event))
        finally:
            await runner.cleanup()
