"""The fields of a policy file: meaning, parser, JSON Schema, and which attribute each fills.

Reader, schema and display all go by these tables. Each parser raises `InvalidValue`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from tenancy.document import InvalidValue, Parse, flag, not_negative, number, one_of, positive, text, whole
from tenancy.objective import OverloadAction, UnattainableAction
from tenancy.policy import ALGORITHMS

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How a value is read, and the JSON Schema of what can be."""

    parse: Parse[Any]
    schema: Schema


VARIABLE = r"\$\{\w+(:-[^}]*)?\}"

MAX_NAME_CHARS = 128

PREFERENCES = ("cost", "quality")


def _text(pattern: str, **bounds: object) -> Schema:
    """A text of this form, or a variable that may be."""
    return {"type": "string", "pattern": f"^({pattern}|{VARIABLE})$", **bounds}


def _numeric(digits: str, **bounds: object) -> Schema:
    """A number, or a text that is one, as `2e-7` and variables are."""
    return {"anyOf": [bounds, _text(digits)]}


def or_off(kind: ValueKind) -> ValueKind:
    """The same, or `off` for what is usual to be lifted. YAML 1.1 reads `off` as false."""

    def parsed(value: object) -> object:
        return OFF if value is False or value == "off" else kind.parse(value)

    return ValueKind(parsed, {"anyOf": [kind.schema, {"enum": [False, "off"]}]})


class _Off:
    """Says that a limit which is usual does not bind."""

    def __repr__(self) -> str:
        return "off"


OFF = _Off()


def name(value: object) -> str:
    """A tenant's, tier's or group's name: it stands in metrics, paths and headers."""
    words = text(value)
    if len(words) > MAX_NAME_CHARS or not words.isprintable() or "/" in words or words != words.strip():
        raise InvalidValue(f"must be at most {MAX_NAME_CHARS} printable characters without `/`")
    return words


def names(value: object) -> frozenset[str]:
    """A list of texts."""
    return frozenset(_texts(value))


def some_names(value: object) -> tuple[str, ...]:
    """A list of texts that is not empty, in its order."""
    if not (found := _texts(value)):
        raise InvalidValue("must name one")
    return tuple(dict.fromkeys(found))


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise InvalidValue("must be a list")
    return [text(held) for held in value]


def renamings(value: object) -> dict[str, str]:
    """A mapping of texts to texts."""
    if not isinstance(value, dict):
        raise InvalidValue("must be a mapping of one name to another")
    return {text(old): text(new) for old, new in value.items()}


def priority(value: object) -> int:
    found = whole(value)
    if abs(found) > 1_000_000:
        raise InvalidValue("must be within a million of 0")
    return found


def fraction(value: object) -> float:
    found = number(value)
    if not 0 <= found <= 1:
        raise InvalidValue("must be from 0 to 1")
    return found


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration(value: object) -> float:
    """`30s`, `5m`, `12h`, `1d` or `2w`, in seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text(value))
    if match is None:
        raise InvalidValue("must be a number of s, m, h, d or w, as in `1d`")
    return int(match[1]) * _SECONDS[match[2]]


def moment(value: object) -> float:
    """A date, or date and time, as Unix time; UTC where it does not say. YAML makes dates of some texts by itself."""
    if not isinstance(value, date):
        try:
            value = datetime.fromisoformat(text(value))
        except ValueError as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue("must be a time as in 2026-12-31T18:00:00Z") from None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def header(value: object) -> str:
    """The name of a request header, in lower case."""
    words = text(value).lower()
    if re.fullmatch(r"[a-z0-9-]+", words) is None:
        raise InvalidValue("must be the name of a header")
    if words in ("authorization", "x-api-key", "host", "content-type", "content-length"):
        raise InvalidValue(f"`{words}` has a meaning of its own")
    return words


def headers(value: object) -> tuple[str, ...]:
    """One header or several."""
    return tuple(dict.fromkeys(header(held) for held in (value if isinstance(value, list) else [value])))


def url(value: object) -> str:
    """An https URL; http only to this machine: who can change keys on their way can make tokens."""
    words = text(value)
    if re.fullmatch(_URL, words) is None:
        raise InvalidValue("must be a URL beginning with https://")
    return words


_URL = r"(https://[^\s/?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)(/[^\s?#]*)?(\?[^\s#]*)?"


def secret(value: object) -> str:
    words = text(value)
    if len(words) < 16:
        raise InvalidValue("must have 16 characters or more")
    return words


_DIGEST = re.compile(r"(?:(hmac-sha256:)|sha256:)?([0-9a-fA-F]{64})")


def digest(value: object) -> str:
    """A digest as it is looked up. A key itself must never stand in a file, and is not repeated in a fault."""
    match = _DIGEST.fullmatch(text(value))
    if match is None:
        raise InvalidValue("must be the sha256 of a key: 64 hexadecimal digits (or hmac-sha256: and as many)")
    return (match[1] or "") + match[2].lower()


def algorithms(value: object) -> tuple[str, ...]:
    """Some of those that are safe."""
    return tuple(one_of(ALGORITHMS)(held) for held in some_names(value))


def leeway(value: object) -> float:
    found = not_negative(value)
    if found > 300:
        raise InvalidValue("must be 300 at most")
    return found


_WHOLE, _ANY = r"0*[1-9][0-9]*(\.0*)?", r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?"
_ABOVE_ZERO = rf"(?=[0.]*[1-9]){_ANY}"

TEXT = ValueKind(text, {"type": "string", "minLength": 1})
NAME = ValueKind(name, _text(r"[^/\s]([^/]*[^/\s])?", maxLength=MAX_NAME_CHARS))
FLAG = ValueKind(flag, {"type": "boolean"})
COUNT = ValueKind(positive(whole), _numeric(_WHOLE, type="integer", minimum=1))
AMOUNT = ValueKind(not_negative, _numeric(_ANY, type="number", minimum=0))
ABOVE_ZERO = ValueKind(positive(number), _numeric(_ABOVE_ZERO, type="number", exclusiveMinimum=0))
FRACTION = ValueKind(fraction, _numeric(r"0|1|0?\.[0-9]+|[0-9]e-[0-9]+", type="number", minimum=0, maximum=1))
PRIORITY = ValueKind(priority, _numeric(r"-?[0-9]{1,6}(\.0*)?", type="integer", minimum=-1_000_000, maximum=1_000_000))
MILLISECONDS = ValueKind(lambda value: positive(number)(value) / 1000, ABOVE_ZERO.schema)
WAIT = ValueKind(lambda value: not_negative(value) / 1000, AMOUNT.schema)
LEEWAY = ValueKind(
    leeway, _numeric(r"[0-2]?[0-9]{1,2}(\.[0-9]+)?|300|[0-9]e-[0-9]+", type="number", minimum=0, maximum=300)
)
OVERLOAD = ValueKind(
    lambda value: OverloadAction(one_of(tuple(OverloadAction))(value)),
    {"enum": [word.value for word in OverloadAction]},
)
UNATTAINABLE = ValueKind(
    lambda value: UnattainableAction(one_of(tuple(UnattainableAction))(value)),
    {"enum": [word.value for word in UnattainableAction]},
)
PREFERENCE = ValueKind(one_of(PREFERENCES), {"enum": list(PREFERENCES)})
DURATION = ValueKind(duration, _text("[1-9][0-9]{0,5}[smhdw]"))
MOMENT = ValueKind(moment, _text("[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?"))
NAMES = ValueKind(names, {"type": "array", "items": TEXT.schema})
SOME_NAMES = ValueKind(some_names, {"type": "array", "items": TEXT.schema, "minItems": 1})
RENAMINGS = ValueKind(
    renamings, {"type": "object", "additionalProperties": TEXT.schema, "propertyNames": {"minLength": 1}}
)
DIGEST = ValueKind(digest, _text(_DIGEST.pattern))
HEADER_NAMES = ValueKind(
    headers, {"anyOf": [_text("[A-Za-z0-9-]+"), {"type": "array", "items": _text("[A-Za-z0-9-]+")}]}
)
URL = ValueKind(url, _text(_URL))
SECRET = ValueKind(secret, {"type": "string", "minLength": 16})
CHOSEN_ALGORITHMS = ValueKind(algorithms, {"type": "array", "items": {"enum": list(ALGORITHMS)}, "minItems": 1})


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One word. `field` is that of the value which it fills."""

    field: str
    kind: ValueKind
    help: str


QUOTA: Mapping[str, FieldSpec] = {
    "rpm": FieldSpec("requests_per_min", or_off(COUNT), "Requests in any sixty seconds."),
    "tpm": FieldSpec("tokens_per_min", or_off(COUNT), "Tokens in any sixty seconds, input and output together."),
    "input_tpm": FieldSpec("input_tokens_per_min", or_off(COUNT), "Input tokens in any sixty seconds."),
    "output_tpm": FieldSpec("output_tokens_per_min", or_off(COUNT), "Output tokens in any sixty seconds."),
    "uncached_tpm": FieldSpec(
        "uncached_tokens_per_min", or_off(COUNT), "Input tokens that no engine held already, in any sixty seconds."
    ),
    "max_parallel_requests": FieldSpec("parallel_requests", or_off(COUNT), "Requests at one time."),
    "max_budget": FieldSpec(
        "budget", or_off(ABOVE_ZERO), "Money within budget_duration, by the prices of hearth.yaml's model_list."
    ),
    "budget_duration": FieldSpec("budget_period_s", DURATION, "How long a budget must last: 1d unless said otherwise."),
    "work_conserving": FieldSpec(
        "binds_only_under_load", FLAG, "Limits per minute bind only while others wait for the same engines."
    ),
}
"""Limits of a tenant, a group or a user; fields of `Quota`."""

TENANT: Mapping[str, FieldSpec] = {
    "tier": FieldSpec("tier", NAME, "The service level that it bought, one of tiers."),
    "weight": FieldSpec("weight", ABOVE_ZERO, "Its share of what its tier's tenants get; 1 unless said otherwise."),
    "on_overload": FieldSpec("on_overload", OVERLOAD, "Stands before its tier's."),
    "models": FieldSpec("models", NAMES, "The models that it may use; all others do not exist for it."),
    "aliases": FieldSpec("aliases", RENAMINGS, "What it calls a model, to what it is called here."),
    "downgrades": FieldSpec("downgrades", RENAMINGS, "The smaller model that answers for a model under overload."),
    "allowed_regions": FieldSpec(
        "regions", SOME_NAMES, "Where its requests may be computed. A pod of unknown region is nowhere."
    ),
    "cache_isolation": FieldSpec(
        "trust_domain",
        NAME,
        "Whose KV cache it shares: tenant (nobody's), shared (everybody's), or the name of a trust domain.",
    ),
    "max_tokens": FieldSpec("output_cap", or_off(COUNT), "Most output tokens of one answer."),
    "coalesce": FieldSpec(
        "coalesces", FLAG, "Requests that are alike at one time share one answer, where it would be the same for all."
    ),
    "resume": FieldSpec(
        "resumes", FLAG, "A stream whose pod is lost goes on at another pod; false: it ends with an error."
    ),
    "min_rung": FieldSpec("min_rung", TEXT, "The lowest rung that may answer, on ladders that have it."),
    "max_rung": FieldSpec("max_rung", TEXT, "The highest rung that may answer, on ladders that have it."),
    "never_escalate": FieldSpec("never_escalate", FLAG, "Whatever rung a request begins at answers it, unjudged."),
    "max_escalation_share": FieldSpec(
        "max_escalation_share", FRACTION, "Of its judged answers on a ladder, at most so many are thrown away."
    ),
    "prefer": FieldSpec("prefer", PREFERENCE, "On ladders: cost begins low and climbs, quality begins at the top."),
}
"""What a tenant is and may; fields of `Tenant`. Its limits, `groups` and `per_user` stand beside."""

TIER: Mapping[str, FieldSpec] = {
    "priority": FieldSpec("priority", PRIORITY, "Who goes first: higher is better, as in the Gateway API."),
    "ttft_ms": FieldSpec("ttft_s", MILLISECONDS, "Promised time to first token, beside ttft_cold_factor."),
    "ttft_cold_factor": FieldSpec(
        "ttft_per_cold",
        AMOUNT,
        "Added to ttft_ms: so many times the seconds that the request's own cold prompt takes an idle engine.",
    ),
    "tpot_ms": FieldSpec("tpot_s", MILLISECONDS, "Promised time per output token, on average over an answer."),
    "weight": FieldSpec("weight", ABOVE_ZERO, "Share of what is left when tiers of equal priority compete."),
    "reserve": FieldSpec(
        "reserve", FRACTION, "Fraction of the fleet that is its own whenever it asks; others may borrow."
    ),
    "max_queue_ms": FieldSpec("longest_wait_s", WAIT, "Longest wait in the gateway's queue."),
    "on_overload": FieldSpec("on_overload", OVERLOAD, "What becomes of a request whose promise cannot be kept."),
    "unattainable": FieldSpec(
        "unattainable",
        UNATTAINABLE,
        "A prompt whose prefill alone takes longer than its TTFT: serve it as soon as possible, or reject it.",
    ),
    "batch": FieldSpec("is_batch", FLAG, "Fills what others leave idle, and is never in anybody's way."),
}
"""Fields of `Tier`."""

JWT: Mapping[str, FieldSpec] = {
    "issuer": FieldSpec("issuer", URL, "The claim iss, exactly; keys are found from it where nothing else says where."),
    "audiences": FieldSpec("audiences", SOME_NAMES, "One of them must stand in the claim aud."),
    "tenant_claim": FieldSpec("tenant_claim", TEXT, "The claim that names the tenant; a.b looks into claim a."),
    "user_claim": FieldSpec("user_claim", TEXT, "The claim that names the user: sub unless said otherwise."),
    "group_claim": FieldSpec(
        "group_claim", TEXT, "The claim that names groups; the first that the tenant names counts."
    ),
    "algorithms": FieldSpec(
        "algorithms", CHOSEN_ALGORITHMS, "Signatures that are believed: RS256 and ES256 by default."
    ),
    "leeway_s": FieldSpec("leeway_s", LEEWAY, "How far the issuer's clock may differ from ours: 30 by default."),
    "jwks_url": FieldSpec("jwks_url", URL, "Where the issuer's keys are."),
    "jwks_file": FieldSpec("jwks", TEXT, "A file with the issuer's keys, as JWKS or as PEM, instead of a URL."),
    "default_tenant": FieldSpec("default_tenant", NAME, "Of tokens that name no tenant of this policy."),
}
"""Fields of `TokenRules`."""

HEADERS: Mapping[str, FieldSpec] = {
    "tenant": FieldSpec("tenant", HEADER_NAMES, "Names the tenant, instead of a key."),
    "group": FieldSpec("group", HEADER_NAMES, "Names the tenant's group."),
    "user": FieldSpec("user", HEADER_NAMES, "Names the tenant's user."),
    "objective": FieldSpec("objective", HEADER_NAMES, "Names the tier, as an InferenceObjective does."),
    "priority": FieldSpec("priority", HEADER_NAMES, "A number: the highest tier of at most this priority."),
}
"""Fields of `HeaderRules`."""

KEY: Mapping[str, FieldSpec] = {
    "digest": FieldSpec("digest", DIGEST, "The sha256 of the key in hexadecimal, or hmac-sha256: and its HMAC."),
    "id": FieldSpec("id", NAME, "What the key is called in logs."),
    "group": FieldSpec("group", NAME, "The group of whoever shows it."),
    "user": FieldSpec("user", TEXT, "The user who shows it."),
    "until": FieldSpec("until", MOMENT, "When it ends."),
}
"""Of a key in place."""
