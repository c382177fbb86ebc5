"""A token counts if the issuer signed it, for us, for now; whatever is wrong with it, nothing of it is repeated."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity.tokens import MAX_TOKEN_BYTES, UnknownSigningKey, claim_values, read_keys, verify_token
from routing.rejection import Reason, RequestRejected
from tenancy.document import InvalidValue
from tenancy.policy import ALGORITHMS, TokenRules

NOW_S = 1_800_000_000.0

RULES = TokenRules("https://sso.example", ("hearth",), "team", algorithms=ALGORITHMS)

GOOD = {"iss": "https://sso.example", "aud": "hearth", "exp": NOW_S + 60, "team": "legal", "sub": "ann"}


@cache
def private(kty: str) -> Any:
    match kty:
        case "RSA":
            return rsa.generate_private_key(65537, 2048)
        case "EC":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


MAKERS: dict[str, Callable[[Any], str]] = {
    "RSA": jwt.algorithms.RSAAlgorithm.to_jwk,
    "EC": jwt.algorithms.ECAlgorithm.to_jwk,
    "OKP": jwt.algorithms.OKPAlgorithm.to_jwk,
}


def jwk(kty: str, **words: object) -> dict[str, object]:
    return {**json.loads(MAKERS[kty](private(kty).public_key())), "kid": kty, **words}


def jwks(*keys: dict[str, object]) -> str:
    return json.dumps({"keys": list(keys)})


ALL = jwks(*(jwk(kty) for kty in MAKERS))


def token(algorithm: str = "RS256", kty: str = "RSA", kid: str | None = "RSA", **claims: object) -> str:
    held = {name: value for name, value in {**GOOD, **claims}.items() if value is not None}
    return jwt.encode(held, private(kty), algorithm, headers={"kid": kid} if kid else {})


def rejection(shown: str, rules: TokenRules = RULES, keys: str = ALL) -> str:
    with pytest.raises(RequestRejected) as rejected:
        verify_token(shown, rules, read_keys(keys), NOW_S)
    assert rejected.value.reason is Reason.INVALID_KEY
    return rejected.value.message


@pytest.mark.parametrize(
    ("algorithm", "kty"), [("RS256", "RSA"), ("RS512", "RSA"), ("PS256", "RSA"), ("ES256", "EC"), ("EdDSA", "OKP")]
)
def test_a_good_token_says_who_bears_it(algorithm: str, kty: str) -> None:
    """Signed in any way that is accepted, whatever else is in the set."""
    assert verify_token(token(algorithm, kty, kty), RULES, read_keys(ALL), NOW_S)["team"] == "legal"


def test_a_token_without_a_kid_goes_by_the_only_key_that_fits() -> None:
    """With two it would be a guess."""
    assert verify_token(token(kid=None), RULES, read_keys(ALL), NOW_S)
    with pytest.raises(UnknownSigningKey):
        verify_token(token(kid=None), RULES, read_keys(jwks(jwk("RSA"), jwk("RSA", kid="b"))), NOW_S)


def test_a_key_of_another_kid_is_not_ours() -> None:
    """Whoever asks decides whether to look again."""
    with pytest.raises(UnknownSigningKey):
        verify_token(token(kid="new"), RULES, read_keys(ALL), NOW_S)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://other.example"}, "is of another issuer"),
        ({"aud": "other"}, "is not meant for this service"),
        ({"aud": ["other", "another"]}, "is not meant for this service"),
        ({"exp": NOW_S - 30}, "has expired"),
        ({"nbf": NOW_S + 31}, "is not valid yet"),
        ({"iat": NOW_S + 31}, "is not valid yet"),
        ({"exp": "tomorrow"}, "has an invalid time claim"),
        ({"exp": True}, "has an invalid time claim"),
        ({"exp": 1e300}, "has an invalid time claim"),
        ({"exp": None}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"iss": None}, "lacks one of the claims"),
    ],
)
def test_a_bad_claim_is_named(claims: dict[str, Any], words: str) -> None:
    """What is wrong, and nothing of what the token says."""
    message = rejection(token(**claims))
    assert words in message
    assert "example" not in message
    assert "tomorrow" not in message


def test_clocks_may_differ_a_little() -> None:
    """By the leeway, on either side."""
    keys = read_keys(ALL)
    assert verify_token(token(exp=NOW_S - 29), RULES, keys, NOW_S)
    assert verify_token(token(nbf=NOW_S + 29, iat=NOW_S + 29), RULES, keys, NOW_S)


def test_one_audience_of_several_is_enough() -> None:
    """On either side."""
    rules = TokenRules(RULES.issuer, ("a", "hearth"), "team")
    assert verify_token(token(aud=["hearth", "b"]), rules, read_keys(ALL), NOW_S)


def test_a_token_that_no_one_signed_is_rejected() -> None:
    """`alg: none`, or a public key used as if it were a secret."""
    none = jwt.encode(GOOD, "", "none")
    assert "not accepted" in rejection(none)
    _, body, _ = token().split(".")
    assert "not accepted" in rejection(none.split(".")[0] + f".{body}.")
    confused = jwt.encode(GOOD, "a secret of thirty-two bytes or more", "HS256", headers={"kid": "RSA"})
    assert "not accepted" in rejection(confused)


def test_a_signature_that_is_wrong_is_rejected() -> None:
    """Another's, a changed body, or a way that does not fit the key."""
    mine, theirs = token(), token(team="search")
    assert "signature" in rejection(".".join([*theirs.split(".")[:2], mine.split(".")[2]]))
    assert "does not match its key" in rejection(token("ES256", "EC", "RSA"))
    assert "does not match its key" in rejection(token("RS512"), keys=jwks(jwk("RSA", alg="RS256")))
    assert "not accepted" in rejection(token("RS512"), TokenRules(RULES.issuer, RULES.audiences, "team"))


@pytest.mark.parametrize("kty", MAKERS)
@pytest.mark.parametrize("appended", ["=", "==", "====", "\n", " ", "!", "%3D", "A", "\u00e9"])
def test_a_token_has_one_writing(kty: str, appended: str) -> None:
    """Nothing behind any of its parts, and nothing in front: each writing would be verified and remembered."""
    shown = token({"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[kty], kty, kty)
    parts = shown.split(".")
    rejection(appended + shown)
    for at in range(3):
        rejection(".".join([*parts[:at], parts[at] + appended, *parts[at + 1 :]]))


def test_the_last_bits_of_a_signature_count() -> None:
    """A signature of 256 bytes leaves four bits of its last character without a meaning: they are 0."""
    shown = token()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert letters.index(shown[-1]) % 16 == 0
    for bits in range(1, 16):
        rejection(shown[:-1] + letters[letters.index(shown[-1]) + bits])


def test_a_huge_token_is_not_looked_at() -> None:
    """However good."""
    assert "too long" in rejection(token(padding="x" * MAX_TOKEN_BYTES))


@given(st.text(max_size=200) | st.binary(max_size=60).map(lambda raw: jwt.utils.base64url_encode(raw).decode()))
def test_nonsense_is_rejected(piece: str) -> None:
    """In any part of a token, and never by another error."""
    parts = token().split(".")
    for at in range(3):
        shown = ".".join([*parts[:at], piece, *parts[at + 1 :]])
        if shown != ".".join(parts):
            with pytest.raises((RequestRejected, UnknownSigningKey)):
                verify_token(shown, RULES, read_keys(ALL), NOW_S)


def test_deep_nesting_is_rejected() -> None:
    """A few kilobytes of brackets must not exhaust the stack."""
    deep = jwt.utils.base64url_encode(b"[" * 8_000).decode()
    _, body, signature = token().split(".")
    rejection(f"{deep}.{body}.{signature}")


def test_keys_for_other_purposes_are_skipped() -> None:
    """Encryption keys, shared secrets, kinds that come later, broken ones."""
    keys = read_keys(
        jwks(
            jwk("RSA", kid="enc", use="enc"),
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
            {"kty": "AKP", "kid": "later"},
            {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
            jwk("EC"),
        )
    )
    assert set(keys) == {"EC"}


def test_keys_may_stand_in_pem_blocks() -> None:
    """One or several, of any kind; tokens then need no kid."""
    pem = "\n".join(
        private(kty).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        for kty in MAKERS
    )
    keys = read_keys(f"# the keys of our issuer\n{pem}")
    assert sorted(key.kty for key in keys.values()) == ["EC", "OKP", "RSA"]
    assert verify_token(token("ES256", "EC", None), RULES, keys, NOW_S)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a JSON Web Key Set"),
        ("[]", "is not a JSON Web Key Set"),
        ('{"keys": 5}', "is not a JSON Web Key Set"),
        ("[" * 100_000, "is not a JSON Web Key Set"),
        ('{"keys": []}', "contains no public key"),
        ('{"keys": [5, null]}', "contains no public key"),
        ("-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----", "is not a public key"),
    ],
)
def test_what_holds_no_keys_is_wrong(text: str, words: str) -> None:
    """And says so."""
    with pytest.raises(InvalidValue, match=words):
        read_keys(text)


def test_a_private_key_is_rejected() -> None:
    """It has no business here."""
    with pytest.raises(InvalidValue, match="private key"):
        read_keys(jwks(json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private("EC")))))


def test_claims_are_found_where_they_are() -> None:
    """By name, by path, one or several; what is no text is none."""
    claims = {"team": "a", "realm": {"groups": ["b", 5, "", "c"]}, "x.y": "d", "n": 5}
    assert claim_values(claims, "team") == ("a",)
    assert claim_values(claims, "realm.groups") == ("b", "c")
    assert claim_values(claims, "x.y") == ("d",)
    assert claim_values(claims, "n") == claim_values(claims, "gone") == claim_values(claims, "team.x") == ()
