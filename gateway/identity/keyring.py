"""Who asks: a key by its digest, a token by its issuer's keys, or what a trusted proxy says. Holds the policy in force.

A look-up by digest needs no constant time: who could learn a digest's first digits has learned nothing of a key.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256

from gateway.identity.callers import Callers, claimant
from gateway.identity.issuer import Issuer
from gateway.identity.tokens import LONGEST_TOKEN, UnknownSigner, no, verify
from routing.rejection import Reason, Refused
from tenancy.policy import HMAC, Policy
from tenancy.tenants import NOBODY, Caller

MOST_TOKENS = 10_000
"""Verified tokens that are remembered: about 1 KB each, against 50 us for a signature."""

WORD = "latin-1"
"""How header values are read."""


class Keyring:
    """Without a policy everybody is nobody in particular; with one, nobody is by default."""

    def __init__(
        self,
        policy: Policy | None = None,
        issuer: Issuer | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._wall_clock = wall_clock
        self._verified: dict[str, tuple[Caller, float]] = {}
        self.policy = policy

    @property
    def policy(self) -> Policy | None:
        """In force; who is being served keeps what it came under."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self._policy = policy
        self._verified.clear()
        self._callers = Callers(policy) if policy is not None else None
        if self._issuer is not None:
            self._issuer.follow(policy.jwt if policy is not None else None, self._verified.clear)

    def identify(self, key: str | None, spoken: Mapping[bytes, bytes] | None = None) -> Caller:
        """Whoever shows this key or token. `spoken`: the headers of a request that a trusted proxy has sent.

        Raises `Refused` where it is nobody's.
        """
        policy, callers = self._policy, self._callers
        if policy is None or callers is None:
            return NOBODY
        if spoken is None:
            return self._shown(policy, key)
        names = policy.headers
        tenant, group, user, objective, priority = (
            next((said.decode(WORD) for name in held if (said := spoken.get(name.encode()))), "")
            for held in (names.tenant, names.group, names.user, names.objective, names.priority)
        )
        caller = callers.named(tenant) if tenant else self._shown(policy, key)
        return callers.served_as(caller, group=group, user=user, objective=objective, priority=priority)

    def _shown(self, policy: Policy, key: str | None) -> Caller:
        if not key:
            if policy.default is None:
                raise Refused(Reason.INVALID_KEY, "No API key was given: send it as `Authorization: Bearer KEY`.")
            return policy.default
        if len(key) > LONGEST_TOKEN:
            raise Refused(Reason.INVALID_KEY, "The API key is too long.")
        raw = key.encode("utf-8", "surrogateescape")
        digest = sha256(raw).hexdigest()
        found = policy.keys.get(digest)
        if found is None and policy.hmac_secret is not None:
            found = policy.keys.get(HMAC + hmac.digest(policy.hmac_secret.encode(), raw, "sha256").hex())
        if found is None:
            if policy.jwt is not None and key.count(".") == 2:
                return self._borne(policy, key, digest)
            raise Refused(Reason.INVALID_KEY, "The API key is not known here.")
        if self._wall_clock() >= found.until_s:
            raise Refused(Reason.INVALID_KEY, "The API key has expired.")
        return found.caller

    def _borne(self, policy: Policy, token: str, digest: str) -> Caller:
        """Whoever bears a token. One that was verified is believed until it expires, or keys or policy change."""
        now_s = self._wall_clock()
        caller, until_s = self._verified.get(digest, (NOBODY, 0.0))
        if now_s < until_s:
            return caller
        if policy.jwt is None or self._issuer is None or (keys := self._issuer.keys) is None:
            raise Refused(Reason.ISSUER_UNHEARD, "The issuer's keys are not known yet.", retry_after_s=1.0)
        try:
            claims = verify(token, policy.jwt, keys, now_s)
        except UnknownSigner:
            if self._issuer.look_again():
                words = "The token's key is not known yet; the issuer is asked."
                raise Refused(Reason.ISSUER_UNHEARD, words, retry_after_s=1.0) from None
            raise no("is signed with a key that is not the issuer's") from None
        caller = claimant(claims, policy, policy.jwt)
        while len(self._verified) >= MOST_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = (caller, claims["exp"] + policy.jwt.leeway_s)
        return caller
