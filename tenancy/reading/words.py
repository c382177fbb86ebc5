"""The words of a policy: what each means, how it is read, and which field of a value it fills.

One description for the reader, the JSON Schema and `hearth policy explain`. Knows no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenancy.reading.kinds import (
    ABOVE_ZERO,
    AMOUNT,
    CHOSEN_ALGORITHMS,
    COUNT,
    DIGEST,
    DURATION,
    FLAG,
    FRACTION,
    HEADER_NAMES,
    LEEWAY,
    MILLISECONDS,
    MOMENT,
    NAME,
    NAMES,
    OVERLOAD,
    PREFERENCE,
    PRIORITY,
    RENAMINGS,
    SOME_NAMES,
    TEXT,
    UNATTAINABLE,
    URL,
    WAIT,
    Kind,
    or_off,
)


@dataclass(frozen=True, slots=True)
class Word:
    """One word. `field` is that of the value which it fills."""

    field: str
    kind: Kind
    help: str


QUOTA: Mapping[str, Word] = {
    "rpm": Word("requests_per_min", or_off(COUNT), "Requests in any sixty seconds."),
    "tpm": Word("tokens_per_min", or_off(COUNT), "Tokens in any sixty seconds, input and output together."),
    "input_tpm": Word("input_tokens_per_min", or_off(COUNT), "Input tokens in any sixty seconds."),
    "output_tpm": Word("output_tokens_per_min", or_off(COUNT), "Output tokens in any sixty seconds."),
    "uncached_tpm": Word(
        "uncached_tokens_per_min", or_off(COUNT), "Input tokens that no engine held already, in any sixty seconds."
    ),
    "max_parallel_requests": Word("parallel_requests", or_off(COUNT), "Requests at one time."),
    "max_budget": Word(
        "budget", or_off(ABOVE_ZERO), "Money within budget_duration, by the prices of hearth.yaml's model_list."
    ),
    "budget_duration": Word("budget_period_s", DURATION, "How long a budget must last: 1d unless said otherwise."),
    "work_conserving": Word(
        "binds_only_under_load", FLAG, "Limits per minute bind only while others wait for the same engines."
    ),
}
"""Limits of a tenant, a group or a user; fields of `Quota`."""

TENANT: Mapping[str, Word] = {
    "tier": Word("tier", NAME, "The service level that it bought, one of tiers."),
    "weight": Word("weight", ABOVE_ZERO, "Its share of what its tier's tenants get; 1 unless said otherwise."),
    "on_overload": Word("on_overload", OVERLOAD, "Stands before its tier's."),
    "models": Word("models", NAMES, "The models that it may use; all others do not exist for it."),
    "aliases": Word("aliases", RENAMINGS, "What it calls a model, to what it is called here."),
    "downgrades": Word("downgrades", RENAMINGS, "The smaller model that answers for a model under overload."),
    "allowed_regions": Word(
        "regions", SOME_NAMES, "Where its requests may be computed. A pod of unknown region is nowhere."
    ),
    "cache_isolation": Word(
        "trust_domain",
        NAME,
        "Whose KV cache it shares: tenant (nobody's), shared (everybody's), or the name of a trust domain.",
    ),
    "max_tokens": Word("output_cap", or_off(COUNT), "Most output tokens of one answer."),
    "coalesce": Word(
        "coalesces", FLAG, "Requests that are alike at one time share one answer, where it would be the same for all."
    ),
    "resume": Word("resumes", FLAG, "A stream whose pod is lost goes on at another pod; false: it ends with an error."),
    "min_rung": Word("min_rung", TEXT, "The lowest rung that may answer, on ladders that have it."),
    "max_rung": Word("max_rung", TEXT, "The highest rung that may answer, on ladders that have it."),
    "never_escalate": Word("never_escalate", FLAG, "Whatever rung a request begins at answers it, unjudged."),
    "max_escalation_share": Word(
        "max_escalation_share", FRACTION, "Of its judged answers on a ladder, at most so many are thrown away."
    ),
    "prefer": Word("prefer", PREFERENCE, "On ladders: cost begins low and climbs, quality begins at the top."),
}
"""What a tenant is and may; fields of `Tenant`. Its limits, `groups` and `per_user` stand beside."""

TIER: Mapping[str, Word] = {
    "priority": Word("priority", PRIORITY, "Who goes first: higher is better, as in the Gateway API."),
    "ttft_ms": Word("ttft_s", MILLISECONDS, "Promised time to first token, beside ttft_cold_factor."),
    "ttft_cold_factor": Word(
        "ttft_per_cold",
        AMOUNT,
        "Added to ttft_ms: so many times the seconds that the request's own cold prompt takes an idle engine.",
    ),
    "tpot_ms": Word("tpot_s", MILLISECONDS, "Promised time per output token, on average over an answer."),
    "weight": Word("weight", ABOVE_ZERO, "Share of what is left when tiers of equal priority compete."),
    "reserve": Word("reserve", FRACTION, "Fraction of the fleet that is its own whenever it asks; others may borrow."),
    "max_queue_ms": Word("longest_wait_s", WAIT, "Longest wait in the gateway's queue."),
    "on_overload": Word("on_overload", OVERLOAD, "What becomes of a request whose promise cannot be kept."),
    "unattainable": Word(
        "unattainable",
        UNATTAINABLE,
        "A prompt whose prefill alone takes longer than its TTFT: serve it as soon as possible, or reject it.",
    ),
    "batch": Word("is_batch", FLAG, "Fills what others leave idle, and is never in anybody's way."),
}
"""Fields of `Tier`."""

JWT: Mapping[str, Word] = {
    "issuer": Word("issuer", URL, "The claim iss, exactly; keys are found from it where nothing else says where."),
    "audiences": Word("audiences", SOME_NAMES, "One of them must stand in the claim aud."),
    "tenant_claim": Word("tenant_claim", TEXT, "The claim that names the tenant; a.b looks into claim a."),
    "user_claim": Word("user_claim", TEXT, "The claim that names the user: sub unless said otherwise."),
    "group_claim": Word("group_claim", TEXT, "The claim that names groups; the first that the tenant names counts."),
    "algorithms": Word("algorithms", CHOSEN_ALGORITHMS, "Signatures that are believed: RS256 and ES256 by default."),
    "leeway_s": Word("leeway_s", LEEWAY, "How far the issuer's clock may differ from ours: 30 by default."),
    "jwks_url": Word("jwks_url", URL, "Where the issuer's keys are."),
    "jwks_file": Word("jwks", TEXT, "A file with the issuer's keys, as JWKS or as PEM, instead of a URL."),
    "default_tenant": Word("default_tenant", NAME, "Of tokens that name no tenant of this policy."),
}
"""Fields of `TokenRules`."""

HEADERS: Mapping[str, Word] = {
    "tenant": Word("tenant", HEADER_NAMES, "Names the tenant, instead of a key."),
    "group": Word("group", HEADER_NAMES, "Names the tenant's group."),
    "user": Word("user", HEADER_NAMES, "Names the tenant's user."),
    "objective": Word("objective", HEADER_NAMES, "Names the tier, as an InferenceObjective does."),
    "priority": Word("priority", HEADER_NAMES, "A number: the highest tier of at most this priority."),
}
"""Fields of `HeaderRules`."""

KEY: Mapping[str, Word] = {
    "digest": Word("digest", DIGEST, "The sha256 of the key in hexadecimal, or hmac-sha256: and its HMAC."),
    "id": Word("id", NAME, "What the key is called in logs."),
    "group": Word("group", NAME, "The group of whoever shows it."),
    "user": Word("user", TEXT, "The user who shows it."),
    "until": Word("until", MOMENT, "When it ends."),
}
"""Of a key in place."""
