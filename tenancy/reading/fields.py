"""Fields of a policy file: meaning, parser, JSON Schema, and the attribute that each sets.

Reader, schema and display all go by these tables. Each parser raises `InvalidValue`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from tenancy.document import InvalidValue, Parse, flag, integer, not_negative, number, one_of, positive, text
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
    """Accept `off` as well, which removes the default. YAML 1.1 reads `off` as false."""

    def parsed(value: object) -> object:
        return OFF if value is False or value == "off" else kind.parse(value)

    return ValueKind(parsed, {"anyOf": [kind.schema, {"enum": [False, "off"]}]})


class _Off:
    """The value of a limit that a tenant switches off."""

    def __repr__(self) -> str:
        return "off"


OFF = _Off()


def name(value: object) -> str:
    """A tenant's, tier's or group's name: it is used in metrics, paths and headers."""
    content = text(value)
    if len(content) > MAX_NAME_CHARS or not content.isprintable() or "/" in content or content != content.strip():
        raise InvalidValue(f"must be at most {MAX_NAME_CHARS} printable characters without `/`")
    return content


def names(value: object) -> frozenset[str]:
    """A list of texts."""
    return frozenset(_texts(value))


def some_names(value: object) -> tuple[str, ...]:
    """A list of texts that is not empty, in its order."""
    if not (found := _texts(value)):
        raise InvalidValue("must not be empty")
    return tuple(dict.fromkeys(found))


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise InvalidValue("must be a list")
    return [text(held) for held in value]


GRANT_KEYS = ("provider", "region", "models")


def grants(value: object) -> frozenset[tuple[str, str, str]]:
    """A list of grants: each names a provider, one of its regions, and models as they are called here."""
    if not isinstance(value, list):
        raise InvalidValue("must be a list of {provider, region, models}")
    found: set[tuple[str, str, str]] = set()
    for each in value:
        if not isinstance(each, dict) or set(each) != set(GRANT_KEYS):
            raise InvalidValue("each entry must have exactly `provider`, `region` and `models`: nothing is implied")
        provider, region = text(each["provider"]), text(each["region"])
        found.update((provider, region, model) for model in some_names(each["models"]))
    return frozenset(found)


def renamings(value: object) -> dict[str, str]:
    """A mapping of texts to texts."""
    if not isinstance(value, dict):
        raise InvalidValue("must be a mapping of names to names")
    return {text(old): text(new) for old, new in value.items()}


def priority(value: object) -> int:
    found = integer(value)
    if abs(found) > 1_000_000:
        raise InvalidValue("must be from -1000000 to 1000000")
    return found


def fraction(value: object) -> float:
    found = number(value)
    if not 0 <= found <= 1:
        raise InvalidValue("must be from 0 to 1")
    return found


MAX_TTFT_S, MAX_TPOT_S, MAX_QUEUE_S = 600.0, 10.0, 3_600.0
"""Largest objectives that are accepted: a larger number was meant as milliseconds."""


def seconds(max_s: float, *, or_zero: bool = False) -> Parse[float]:
    """Return a parser of seconds up to `max_s`."""

    def parsed(value: object) -> float:
        found = not_negative(value) if or_zero else positive(number)(value)
        if found > max_s:
            raise InvalidValue(f"must be a number of seconds, at most {max_s:g}; {found:g} looks like milliseconds")
        return found

    return parsed


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration(value: object) -> float:
    """`30s`, `5m`, `12h`, `1d` or `2w`, in seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smhdw])", text(value))
    if match is None:
        raise InvalidValue("must be a duration such as 30s, 5m, 12h, 1d or 2w")
    return int(match[1]) * _SECONDS[match[2]]


def moment(value: object) -> float:
    """A date, or date and time, as Unix time; UTC where it does not say. YAML makes dates of some texts by itself."""
    if not isinstance(value, date):
        try:
            value = datetime.fromisoformat(text(value))
        except ValueError as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue("must be an ISO 8601 time such as 2026-12-31T18:00:00Z") from None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def header(value: object) -> str:
    """The name of a request header, in lower case."""
    content = text(value).lower()
    if re.fullmatch(r"[a-z0-9-]+", content) is None:
        raise InvalidValue("must be a header name (letters, digits, `-`)")
    if content in ("authorization", "x-api-key", "host", "content-type", "content-length"):
        raise InvalidValue(f"`{content}` is reserved; use another header")
    return content


def headers(value: object) -> tuple[str, ...]:
    """One header or several."""
    return tuple(dict.fromkeys(header(held) for held in (value if isinstance(value, list) else [value])))


def url(value: object) -> str:
    """An https URL; http only to this machine: who can change keys on their way can make tokens."""
    content = text(value)
    if re.fullmatch(_URL, content) is None:
        raise InvalidValue("must be an https:// URL (http:// only for localhost)")
    return content


_URL = r"(https://[^\s/?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)(/[^\s?#]*)?(\?[^\s#]*)?"


def secret(value: object) -> str:
    content = text(value)
    if len(content) < 16:
        raise InvalidValue("must have at least 16 characters")
    return content


_DIGEST = re.compile(r"(?:(hmac-sha256:)|sha256:)?([0-9a-fA-F]{64})")


def digest(value: object) -> str:
    """A digest as it is looked up. A key itself must never be in a file, and is not repeated in a fault."""
    match = _DIGEST.fullmatch(text(value))
    if match is None:
        raise InvalidValue(
            "must be the sha256 of a key: 64 hexadecimal digits, optionally after `sha256:` or `hmac-sha256:`"
        )
    return (match[1] or "") + match[2].lower()


def algorithms(value: object) -> tuple[str, ...]:
    """Some of those that are safe."""
    return tuple(one_of(ALGORITHMS)(held) for held in some_names(value))


def leeway(value: object) -> float:
    found = not_negative(value)
    if found > 300:
        raise InvalidValue("must be at most 300 seconds")
    return found


_INTEGER, _ANY = r"0*[1-9][0-9]*(\.0*)?", r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?"
_ABOVE_ZERO = rf"(?=[0.]*[1-9]){_ANY}"

TEXT = ValueKind(text, {"type": "string", "minLength": 1})
NAME = ValueKind(name, _text(r"[^/\s]([^/]*[^/\s])?", maxLength=MAX_NAME_CHARS))
FLAG = ValueKind(flag, {"type": "boolean"})
COUNT = ValueKind(positive(integer), _numeric(_INTEGER, type="integer", minimum=1))
AMOUNT = ValueKind(not_negative, _numeric(_ANY, type="number", minimum=0))
ABOVE_ZERO = ValueKind(positive(number), _numeric(_ABOVE_ZERO, type="number", exclusiveMinimum=0))
FRACTION = ValueKind(fraction, _numeric(r"0|1|0?\.[0-9]+|[0-9]e-[0-9]+", type="number", minimum=0, maximum=1))
PRIORITY = ValueKind(priority, _numeric(r"-?[0-9]{1,6}(\.0*)?", type="integer", minimum=-1_000_000, maximum=1_000_000))
TTFT = ValueKind(seconds(MAX_TTFT_S), _numeric(_ABOVE_ZERO, type="number", exclusiveMinimum=0, maximum=MAX_TTFT_S))
TPOT = ValueKind(seconds(MAX_TPOT_S), _numeric(_ABOVE_ZERO, type="number", exclusiveMinimum=0, maximum=MAX_TPOT_S))
QUEUE_WAIT = ValueKind(
    seconds(MAX_QUEUE_S, or_zero=True), _numeric(_ANY, type="number", minimum=0, maximum=MAX_QUEUE_S)
)
LEEWAY = ValueKind(
    leeway, _numeric(r"[0-2]?[0-9]{1,2}(\.[0-9]+)?|300|[0-9]e-[0-9]+", type="number", minimum=0, maximum=300)
)
OVERLOAD = ValueKind(
    lambda value: OverloadAction(one_of(tuple(OverloadAction))(value)),
    {"enum": [action.value for action in OverloadAction]},
)
UNATTAINABLE = ValueKind(
    lambda value: UnattainableAction(one_of(tuple(UnattainableAction))(value)),
    {"enum": [action.value for action in UnattainableAction]},
)
PREFERENCE = ValueKind(one_of(PREFERENCES), {"enum": list(PREFERENCES)})
DURATION = ValueKind(duration, _text("[1-9][0-9]{0,5}[smhdw]"))
MOMENT = ValueKind(moment, _text("[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?"))
NAMES = ValueKind(names, {"type": "array", "items": TEXT.schema})
SOME_NAMES = ValueKind(some_names, {"type": "array", "items": TEXT.schema, "minItems": 1})
RENAMINGS = ValueKind(
    renamings, {"type": "object", "additionalProperties": TEXT.schema, "propertyNames": {"minLength": 1}}
)
GRANTS = ValueKind(
    grants,
    {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": list(GRANT_KEYS),
            "properties": {
                "provider": {**TEXT.schema, "description": "Name of a provider in the configuration (`providers`)."},
                "region": {**TEXT.schema, "description": "Its region."},
                "models": {**SOME_NAMES.schema, "description": "Names of models that may be computed there."},
            },
        },
    },
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
    """One key of the policy. `field` is the attribute that it sets."""

    field: str
    kind: ValueKind
    help: str


QUOTA: Mapping[str, FieldSpec] = {
    "rpm": FieldSpec("requests_per_min", or_off(COUNT), "Requests in any sixty seconds."),
    "tpm": FieldSpec("tokens_per_min", or_off(COUNT), "Tokens in any sixty seconds, input and output together."),
    "input_tpm": FieldSpec("input_tokens_per_min", or_off(COUNT), "Input tokens in any sixty seconds."),
    "output_tpm": FieldSpec("output_tokens_per_min", or_off(COUNT), "Output tokens in any sixty seconds."),
    "uncached_tpm": FieldSpec(
        "uncached_tokens_per_min", or_off(COUNT), "Input tokens that no engine had cached, in any sixty seconds."
    ),
    "max_parallel_requests": FieldSpec("parallel_requests", or_off(COUNT), "Concurrent requests."),
    "max_budget": FieldSpec(
        "budget", or_off(ABOVE_ZERO), "Money within budget_duration, by the prices of hearth.yaml's model_list."
    ),
    "budget_duration": FieldSpec(
        "budget_period_s", DURATION, "Period of max_budget, as 30s, 5m, 12h, 1d or 2w. Default: 1d."
    ),
    "work_conserving": FieldSpec(
        "binds_only_under_load", FLAG, "Limits per minute apply only while other requests wait for the same engines."
    ),
}
"""Limits of a tenant, a group or a user; fields of `Quota`."""

TENANT: Mapping[str, FieldSpec] = {
    "tier": FieldSpec("tier", NAME, "The tenant's tier, one of `tiers`."),
    "weight": FieldSpec("weight", ABOVE_ZERO, "Its share among the tenants of its tier. Default: 1."),
    "on_overload": FieldSpec("on_overload", OVERLOAD, "Overrides the tier's on_overload."),
    "models": FieldSpec("models", NAMES, "Permitted models; others return 404. Default: all."),
    "aliases": FieldSpec("aliases", RENAMINGS, "Map from the tenant's model names to the names served here."),
    "downgrades": FieldSpec("downgrades", RENAMINGS, "The smaller model that answers for a model under overload."),
    "allowed_regions": FieldSpec(
        "regions", SOME_NAMES, "Regions of the pods that may serve its requests. A pod of unknown region matches none."
    ),
    "cache_isolation": FieldSpec(
        "trust_domain",
        NAME,
        "Scope of KV cache sharing: tenant (only itself), shared (all tenants), or the name of a trust domain.",
    ),
    "max_tokens": FieldSpec("output_cap", or_off(COUNT), "Maximum output tokens of one response."),
    "prewarm": FieldSpec(
        "prewarms",
        FLAG,
        "Its prompts may be kept in memory to warm new pods; true: also with cache_isolation, and in pools of higher "
        "rank. Default: where it shares the cache with all tenants, in pools of the lowest rank.",
    ),
    "coalesce": FieldSpec(
        "coalesces", FLAG, "Identical requests in flight share one response, where it would be the same for all."
    ),
    "resume": FieldSpec(
        "resumes", FLAG, "A stream whose pod is lost is resumed on another pod; false: it ends with an error."
    ),
    "cascade_min_model": FieldSpec(
        "cascade_min_model", TEXT, "Smallest model that may answer, in cascades that contain it."
    ),
    "cascade_max_model": FieldSpec(
        "cascade_max_model", TEXT, "Largest model that may answer, in cascades that contain it."
    ),
    "cascade_never_escalate": FieldSpec(
        "cascade_never_escalate", FLAG, "In cascades: the first model's answer is returned without a check."
    ),
    "cascade_max_escalation_share": FieldSpec(
        "cascade_max_escalation_share",
        FRACTION,
        "In cascades: maximum share of its checked answers that may be escalated, from 0 to 1.",
    ),
    "cascade_prefer": FieldSpec(
        "cascade_prefer",
        PREFERENCE,
        "In cascades: cost starts with the smallest model and escalates, quality starts with the largest.",
    ),
    "cascade_bucket": FieldSpec(
        "cascade_bucket", TEXT, "In cascades that list it: the task bucket of requests. Default: by each prompt."
    ),
    "cascade_collect": FieldSpec(
        "cascade_collect",
        FLAG,
        "In cascades that collect: its requests may be sampled, sent to all models and labelled.",
    ),
    "canary_compare": FieldSpec(
        "canary_compare",
        FLAG,
        "Its requests may be sampled and sent to a canary and to the standing pods, to compare their answers.",
    ),
    "providers": FieldSpec(
        "grants",
        GRANTS,
        "Providers outside the fleet that its requests may be sent to: each entry names provider, region and models. "
        "Default: none.",
    ),
    "providers_max_budget": FieldSpec(
        "provider_budget", or_off(ABOVE_ZERO), "Money for providers within providers_budget_duration; off: no limit."
    ),
    "providers_budget_duration": FieldSpec(
        "provider_period_s", DURATION, "Period of providers_max_budget, as 30s, 5m, 12h, 1d or 2w. Default: 1d."
    ),
    "providers_max_share": FieldSpec(
        "provider_max_share", FRACTION, "Maximum share of its requests that may be sent to providers. Default: 1."
    ),
}
"""Settings of a tenant; fields of `Tenant`. Limits, `groups` and `per_user` are read separately."""

TIER: Mapping[str, FieldSpec] = {
    "priority": FieldSpec("priority", PRIORITY, "Order of service: higher is served first, as in the Gateway API."),
    "ttft_s": FieldSpec("ttft_s", TTFT, "TTFT objective in seconds, before ttft_uncached_factor. Default: none."),
    "ttft_uncached_factor": FieldSpec(
        "ttft_uncached_factor",
        AMOUNT,
        "Added to ttft_s: this factor times the seconds that an idle engine needs for the uncached prompt. Default: 0.",
    ),
    "tpot_s": FieldSpec("tpot_s", TPOT, "Objective for the mean seconds per output token. Default: none."),
    "weight": FieldSpec(
        "weight", ABOVE_ZERO, "Share of the remaining capacity when tiers of equal priority compete. Default: 1."
    ),
    "guaranteed_share": FieldSpec(
        "guaranteed_share", FRACTION, "Guaranteed fraction of the fleet; other tiers may use it while it is idle."
    ),
    "max_queue_s": FieldSpec("max_queue_s", QUEUE_WAIT, "Maximum seconds in the gateway's queue. Default: 30."),
    "on_overload": FieldSpec("on_overload", OVERLOAD, "Action for a request whose objective no engine can meet."),
    "on_unattainable": FieldSpec(
        "on_unattainable",
        UNATTAINABLE,
        "Action for a prompt whose prefill alone takes longer than its TTFT objective: serve it late, or reject it.",
    ),
    "best_effort": FieldSpec("is_best_effort", FLAG, "Uses idle capacity only."),
}
"""Fields of `Tier`."""

JWT: Mapping[str, FieldSpec] = {
    "issuer": FieldSpec(
        "issuer",
        URL,
        "Exact value of the claim iss; its discovery document locates the keys unless jwks_url or jwks_file is set.",
    ),
    "audiences": FieldSpec("audiences", SOME_NAMES, "Accepted values of the claim aud."),
    "tenant_claim": FieldSpec("tenant_claim", TEXT, "Claim with the tenant; a.b reads inside claim a."),
    "user_claim": FieldSpec("user_claim", TEXT, "Claim with the user. Default: sub."),
    "group_claim": FieldSpec(
        "group_claim", TEXT, "Claim with the groups; the first one listed under the tenant's groups counts."
    ),
    "algorithms": FieldSpec(
        "algorithms", CHOSEN_ALGORITHMS, "Accepted signature algorithms. Default: RS256 and ES256."
    ),
    "leeway_s": FieldSpec("leeway_s", LEEWAY, "Maximum clock difference in seconds, at most 300. Default: 30."),
    "jwks_url": FieldSpec("jwks_url", URL, "URL of the issuer's keys."),
    "jwks_file": FieldSpec("jwks", TEXT, "File with the issuer's keys, as JWKS or PEM, instead of jwks_url."),
    "default_tenant": FieldSpec(
        "default_tenant",
        NAME,
        "Tenant of tokens that name no tenant of this policy. Default: such tokens are rejected.",
    ),
}
"""Fields of `TokenRules`."""

HEADERS: Mapping[str, FieldSpec] = {
    "tenant": FieldSpec("tenant", HEADER_NAMES, "Header with the tenant, instead of a key."),
    "group": FieldSpec("group", HEADER_NAMES, "Header with the tenant's group."),
    "user": FieldSpec("user", HEADER_NAMES, "Header with the tenant's user."),
    "objective": FieldSpec("objective", HEADER_NAMES, "Header with the tier's name, as an InferenceObjective."),
    "priority": FieldSpec(
        "priority", HEADER_NAMES, "Header with a number: selects the highest tier of at most this priority."
    ),
}
"""Fields of `HeaderRules`."""

KEY: Mapping[str, FieldSpec] = {
    "digest": FieldSpec("digest", DIGEST, "The sha256 of the key in hexadecimal, or hmac-sha256: and its HMAC."),
    "id": FieldSpec("id", NAME, "ID of the key in logs. Default: the first digits of the digest."),
    "group": FieldSpec("group", NAME, "Group that the key authenticates."),
    "user": FieldSpec("user", TEXT, "User that the key authenticates."),
    "expires_at": FieldSpec("expires_at", MOMENT, "Time of expiry, ISO 8601; UTC without an offset. Default: never."),
}
"""Fields of an inline API key, beside its limits."""

KEY_LIMITS: Mapping[str, FieldSpec] = {
    key: FieldSpec(spec.field, kind, spec.help)
    for key, kind in {
        "rpm": COUNT,
        "tpm": COUNT,
        "input_tpm": COUNT,
        "output_tpm": COUNT,
        "uncached_tpm": COUNT,
        "max_parallel_requests": COUNT,
        "max_budget": ABOVE_ZERO,
        "budget_duration": DURATION,
    }.items()
    for spec in (QUOTA[key],)
}
"""Limits of one key, below those of its tenant; fields of `Quota`."""
