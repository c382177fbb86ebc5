"""Verifies JWTs: signature, issuer, audience and times; then their claims can be used.

PyJWT (the extra `jwt`) checks the signature; times are checked here, because the clock is an argument. Rejections
repeat nothing of a token.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.rejection import Reason, RequestRejected
from tenancy.document import InvalidValue
from tenancy.policy import TokenRules

MAX_TOKEN_BYTES = 16 << 10
"""Identity providers that list many groups need half of it."""

MAX_KEYS = 100

JWT_PATTERN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
"""Base64 for URLs without padding."""

Claims = Mapping[str, Any]

KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""Key type by how an algorithm's name begins."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, and the algorithms it may be used for."""

    kty: str
    key: Any = field(repr=False, compare=False)
    alg: str | None = None

    def fits(self, algorithm: str) -> bool:
        return self.kty == KEY_TYPES[algorithm[:2]] and self.alg in (None, algorithm)


class UnknownSigningKey(Exception):  # noqa: N818 - not an error by itself: the issuer may have rotated its keys
    """The token names a signing key that is not among the known ones."""


KeySet = Mapping[str, IssuerKey]
"""Keys by `kid`; those without one by their position."""


def read_keys(text: str) -> KeySet:
    """Parse the public keys of a JWKS or of PEM blocks. Raises `InvalidValue`."""
    keys = _pem_keys(text) if "-----BEGIN" in text else _jwks_keys(text)
    if not keys:
        raise InvalidValue("contains no public key that verifies signatures")
    return keys


def _jwks_keys(text: str) -> dict[str, IssuerKey]:
    from jwt import PyJWK, PyJWTError  # noqa: PLC0415 - an extra

    try:
        listed = json.loads(text)["keys"]
        assert isinstance(listed, list)  # noqa: S101 - joins the other ways of not being a key set
    except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
        raise InvalidValue("is not a JSON Web Key Set") from None
    keys = {}
    for at, jwk in enumerate(listed[:MAX_KEYS]):
        # Keys for other purposes, and of unknown kinds, are skipped.
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or jwk.get("kty") not in KEY_TYPES.values():
            continue
        try:
            key = PyJWK.from_dict(jwk).key
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
        if hasattr(key, "public_key"):
            raise InvalidValue("contains a private key: every reader of it could create tokens")
        keys[str(jwk.get("kid", at))] = IssuerKey(jwk["kty"], key, jwk.get("alg"))
    return keys


def _pem_keys(text: str) -> dict[str, IssuerKey]:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    kinds = {rsa.RSAPublicKey: "RSA", ec.EllipticCurvePublicKey: "EC", ed25519.Ed25519PublicKey: "OKP"}
    keys = {}
    for at, block in enumerate(re.findall(r"-----BEGIN [^-]+-----.*?-----END [^-]+-----", text, re.DOTALL)):
        try:
            key = load_pem_public_key(block.encode())
        except (ValueError, TypeError):
            raise InvalidValue("contains a PEM block that is not a public key") from None
        for kind, kty in kinds.items():
            if isinstance(key, kind):
                keys[str(at)] = IssuerKey(kty, key)
    return keys


def verify_token(token: str, rules: TokenRules, keys: KeySet, now_s: float) -> Claims:
    """Return the claims of a valid token. Raises `RequestRejected` and `UnknownSigningKey`."""
    from jwt import PyJWTError, decode, get_unverified_header  # noqa: PLC0415 - an extra

    if len(token) > MAX_TOKEN_BYTES:
        raise token_rejected("is too long")
    if not _is_canonical(token):
        raise token_rejected("is not a valid token")
    try:
        head = get_unverified_header(token)
        algorithm = head.get("alg")
        if algorithm not in rules.algorithms:
            raise token_rejected("is signed in a way that is not accepted here")
        claims: Claims = decode(
            token,
            key=_signer(head.get("kid"), algorithm, keys).key,
            algorithms=[algorithm],
            audience=rules.audiences,
            issuer=rules.issuer,
            options={
                "require": ["exp", "iss", "aud"],
                # Checked below, by our own clock.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_sub": False,
            },
        )
    except PyJWTError as error:
        raise token_rejected(_WRONG.get(type(error).__name__, "is not a valid token")) from None
    except (ValueError, TypeError, RecursionError):
        raise token_rejected("is not a valid token") from None
    _check_times(claims, rules.leeway_s, now_s)
    return claims


def _is_canonical(token: str) -> bool:
    """Return whether a token has the only encoding that RFC 7515 allows.

    Base64 decoders skip foreign characters, surplus padding and the last bits of a signature. One token would otherwise
    have many encodings, each of which would be verified and cached.
    """
    if JWT_PATTERN.fullmatch(token) is None:
        return False
    signature = token.rpartition(".")[2]
    try:
        decoded = urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    except ValueError:
        return False
    return urlsafe_b64encode(decoded).rstrip(b"=") == signature.encode()


_WRONG = {
    "InvalidIssuerError": "is of another issuer",
    "InvalidAudienceError": "is not meant for this service",
    "MissingRequiredClaimError": "lacks one of the claims exp, iss and aud",
    "InvalidSignatureError": "has a signature that is wrong",
}
"""Message of a rejection, by the name of PyJWT's exception."""


def _signer(kid: object, algorithm: str, keys: KeySet) -> IssuerKey:
    fitting = [key for key in keys.values() if key.fits(algorithm)]
    if kid is None and len(fitting) == 1:
        return fitting[0]
    key = keys.get(kid) if isinstance(kid, str) else None
    if key is None:
        raise UnknownSigningKey
    if not key.fits(algorithm):
        raise token_rejected("has an algorithm that does not match its key")
    return key


def _check_times(claims: Claims, leeway_s: float, now_s: float) -> None:
    until_s, not_before_s, issued_s = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if until_s is None or now_s >= until_s + leeway_s:
        raise token_rejected("has expired")
    if any(since_s is not None and now_s < since_s - leeway_s for since_s in (not_before_s, issued_s)):
        raise token_rejected("is not valid yet")


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise token_rejected("has an invalid time claim")
    return float(value)


def claim_values(claims: Claims, path: str) -> tuple[str, ...]:
    """Return the texts of a claim, empty if it does not exist. `a.b` looks into claim `a`."""
    value: object = claims.get(path)
    if value is None and "." in path:
        value = claims
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return tuple(held for held in (value if isinstance(value, list) else [value]) if isinstance(held, str) and held)


def token_rejected(words: str) -> RequestRejected:
    """Return the rejection of a token."""
    return RequestRejected(Reason.INVALID_KEY, f"The token {words}.")
