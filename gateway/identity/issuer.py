"""Fetches the signing keys of a token issuer in the background: every few minutes, and after an unknown key.

While the issuer cannot be reached, the last keys stay valid.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from gateway.identity.tokens import KeySet, read_keys
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import restarted
from tenancy.document import InvalidValue
from tenancy.policy import TokenRules
from tenancy.reading.fields import url

REFRESH_INTERVAL_S = 300.0
"""Issuers publish a new key hours before they sign with it."""

MIN_REFRESH_INTERVAL_S = 10.0
"""Minimum between two fetches, however many unknown keys are presented."""

TIMEOUT = aiohttp.ClientTimeout(total=5.0)

MAX_RESPONSE_BYTES = 1 << 20


class TokenIssuer:
    """One per gateway. Fetches the keys of the issuer that the current policy names."""

    def __init__(self, session: aiohttp.ClientSession, *, log_event: EventLog, clock: Callable[[], float]) -> None:
        self._session = session
        self._log_event = log_event
        self._clock = clock
        self._rules: TokenRules | None = None
        self._changed: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        self._fetched_s: float | None = None
        self._text = ""
        self.keys: KeySet | None = None
        """None until they have been fetched."""

    def use_rules(self, rules: TokenRules | None, changed: Callable[[], None]) -> None:
        """Use these rules from now on. `changed` is called whenever the keys change."""
        before, self._rules, self._changed = self._rules, rules, changed
        if rules is None:
            self.keys = None
        elif rules.jwks is not None:
            self.keys, self._text = read_keys(rules.jwks), ""
        elif before is None or (before.issuer, before.jwks_url) != (rules.issuer, rules.jwks_url):
            self.keys = self._fetched_s = None
            self._text = ""
        self._wake.set()

    def request_refresh(self) -> bool:
        """Ask for a fetch because of an unknown key. Returns whether there will be one soon."""
        if self._rules is None or self._rules.jwks is not None:
            return False
        if self._fetched_s is not None and self._clock() < self._fetched_s + MIN_REFRESH_INTERVAL_S:
            return False
        self._wake.set()
        return True

    @restarted("token issuer")
    async def run(self) -> None:
        """Fetch the keys periodically until cancelled."""
        while True:
            self._wake.clear()
            rules = self._rules
            if rules is None or rules.jwks is not None:
                await self._wake.wait()
                continue
            wait_s = REFRESH_INTERVAL_S if await self._refresh(rules) else MIN_REFRESH_INTERVAL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _refresh(self, rules: TokenRules) -> bool:
        try:
            where = rules.jwks_url or await self._discovered(rules.issuer)
            text = await self._read(where)
            keys = read_keys(text)
        except (aiohttp.ClientError, TimeoutError, InvalidValue, UnicodeDecodeError) as error:
            self._log_event("error", "jwks_fetch_failed", issuer=rules.issuer, error=_words(error))
            return False
        finally:
            if self._rules is rules:
                self._fetched_s = self._clock()
        if self._rules is rules and text != self._text:
            self._log_event("info", "jwks_loaded", issuer=rules.issuer, keys=len(keys))
            self.keys, self._text = keys, text
            self._changed()
        return True

    async def _discovered(self, issuer: str) -> str:
        """Return the issuer's `jwks_uri` (OpenID Connect Discovery)."""
        try:
            discovery_document = json.loads(await self._read(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
            named, where = discovery_document["issuer"], url(discovery_document["jwks_uri"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidValue(f"its discovery document is none: {_words(error)}") from None
        if named != issuer:
            raise InvalidValue("its discovery document is another issuer's")
        return where

    async def _read(self, where: str) -> str:
        async with self._session.get(where, timeout=TIMEOUT, allow_redirects=False) as answer:
            if answer.status != 200:
                raise InvalidValue(f"{where} answers {answer.status}")
            body = b""
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > MAX_RESPONSE_BYTES:
                    raise InvalidValue(f"{where} is too long")
        return body.decode("utf-8")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
