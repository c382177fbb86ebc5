"""A client's body read once under a tenant's rules: the facts that a decision needs, and the bytes for the pod.

The rules are model names, output limits and tenant isolation; nothing else of a tenant is used here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec import Raw, Struct
from msgspec.json import encode
from xxhash import xxh3_128_hexdigest

from routing.blocks import EMPTY_PROMPT, Prompt, cut_prompt, hash_seed
from routing.pods import NO_GRANTS, ProviderGrant
from routing.reading.bodies import BODIES, RequestBody
from routing.reading.conversation import MEDIA
from routing.reading.rewriting import NO_CHANGES, rewrite
from routing.reading.validation import (
    MAX_DIGITS,
    UniqueFieldDecoder,
    check_text,
    long_integer,
    rejection_of,
    repeated_field,
)
from routing.rejection import Reason, RequestRejected
from routing.request import GENERATING, Api, Arrival, Request


class ParsePolicy(Protocol):
    """Of one who asks."""

    @property
    def name(self) -> str | None:
        """Owner of the sessions and stored responses; None without tenants."""
        ...

    @property
    def aliases(self) -> Mapping[str, str]:
        """What is called otherwise there, to what it is called here."""
        ...

    @property
    def output_cap(self) -> int | None:
        """Most tokens of one answer."""
        ...

    @property
    def trust_domain(self) -> str | None:
        """Who may share its cached prefixes: None for everyone."""
        ...

    @property
    def regions(self) -> frozenset[str] | None:
        """Where it may be computed, None for anywhere."""
        ...

    @property
    def grants(self) -> frozenset[ProviderGrant]:
        """Where outside the fleet it may be computed; empty for nowhere."""
        ...


@dataclass(frozen=True, slots=True)
class DefaultParsePolicy:
    """Everything goes, and nothing is kept apart."""

    name: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    output_cap: int | None = None
    trust_domain: str | None = None
    regions: frozenset[str] | None = None
    grants: frozenset[ProviderGrant] = NO_GRANTS


PLAIN = DefaultParsePolicy()

INTERNAL = Arrival()
"""Of requests that no client sent."""


def body_changes(body: RequestBody, model: str, terms: ParsePolicy) -> dict[str, bytes]:
    """The fields of a body that must say something else for its terms to hold, in JSON."""
    changes: dict[str, bytes] = {}
    if model != body.model:
        changes["model"] = encode(model)
    cap, salt = terms.output_cap, terms.trust_domain
    if cap is not None:
        changes.update(dict.fromkeys(body.exceeds(cap), b"%d" % cap))
    if salt and body.makes_kv:
        changes["cache_salt"] = encode(cache_salt(salt))
    return changes


@lru_cache(maxsize=1024)
def cache_salt(domain: str) -> str:
    r"""Return the `cache_salt` that engines receive for a trust domain: 71 characters of letters, digits and `-`.

    vLLM rejects salts of more than 128 characters and those with `@`, `/`, `\` or NUL, all of which a tenant's name
    may have. The digest is not keyed: every gateway of a fleet must make the same salt, and clients cannot set one.
    """
    return f"hearth-{sha256(domain.encode('utf-8', 'surrogatepass')).hexdigest()}"


def scoped_name(name: str, owner: str | None) -> str:
    """A name that clients choose or guess, apart from what other tenants call the same."""
    return name if owner is None else f"{owner}/{name}"


REPEATING = frozenset({Api.RERANK, Api.SCORE})
"""APIs whose engines compute a text once for each text that it is compared with."""

REMOTE = re.compile(rb'"\s*(?:https?|file):', re.IGNORECASE)
"""The address of a picture, sound, film or file."""

MAX_SESSION_CHARS = 256
"""Characters of a session's name that are kept; a longer one is kept as its digest."""

NO_BACKGROUND = (
    "`background: true` is not supported: such a response could not be counted against limits. "
    "Remove it, and use `stream: true` for long responses."
)

DECODERS: dict[Api, UniqueFieldDecoder[RequestBody]] = {api: UniqueFieldDecoder(body) for api, body in BODIES.items()}


class ParsedRequest(Struct, frozen=True, gc=False):
    """What a body says, and the body for the pod.

    `usage_added`: the pod was sent a request for a usage event that the client did not request; it is to be withheld.
    """

    request: Request
    body: bytes
    usage_added: bool


def read_request(
    api: Api,
    body: bytes,
    *,
    request_id: str,
    session: str | None = None,
    terms: ParsePolicy = PLAIN,
    priority: int = 0,
    retried: int = 0,
    model: str | None = None,
    adds_usage: bool = True,
    arrival: Arrival = INTERNAL,
) -> ParsedRequest:
    """Read a client's body. `session` is its name for the conversation from a header, where it sent one.

    `model` answers instead of the requested one; `adds_usage`: an event that the client did not request
    could be withheld from it. Raises `RequestRejected` where the body is not a JSON object or a
    field we use has a wrong type or value.
    """
    fields = _decode(api, body)
    if not fields.model:
        raise RequestRejected(Reason.BAD_REQUEST, "`model` is required.", param="model")
    limit, owner = fields.output_limit, terms.name
    if owner is not None and fields.outlives_request:
        raise RequestRejected(Reason.BAD_REQUEST, NO_BACKGROUND, param="background")
    if limit == 0 and fields.lacks_answer:
        raise RequestRejected(
            Reason.BAD_REQUEST, "`max_tokens`: 0 is only valid for a completion with `echo`.", param="max_tokens"
        )
    if model is None:
        model = terms.aliases.get(fields.model, fields.model)
    out: list[bytes] = []
    prompts, shaping, continued = fields.write(out), fields.shaping(), fields.continued_response
    canonical = b"".join(out)
    if DECODERS[api].hides(fields, body, len(canonical)):
        _check_once(body)
    if terms.output_cap is not None and fields.LIMITED_BY:
        limit = terms.output_cap if limit is None else min(limit, terms.output_cap)
    is_shaped, skips_cache = any(shaping), fields.skips_cache
    counts_text = not is_shaped or fields.counts_text
    request = Request(
        id=request_id,
        api=api,
        model=model,
        prompt=_prompt(continued or "", shaping, canonical, model, terms.trust_domain or "") if out else EMPTY_PROMPT,
        stream=fields.streams,
        max_tokens=limit,
        min_tokens=fields.min_output,
        unseen_bytes=sum([memoryview(raw).nbytes for raw in shaping]) if is_shaped else 0,
        sequences=max(1, prompts) * fields.copies,
        session=_bounded(named, owner) if (named := session or fields.session) else None,
        continues=scoped_name(continued, owner) if continued else None,
        tenant=owner,
        regions=terms.regions,
        grants=terms.grants,
        priority=priority,
        reads_cache=not skips_cache,
        shows_cache=prompts <= 1 and counts_text and not skips_cache and not _has_remote_media(api, canonical, body),
        counts_text=counts_text and api not in REPEATING,
        retry_count=retried,
        is_single_engine=fields.is_single_engine,
        is_beam_search=fields.is_beam_search,
        holds_back=fields.holds_back,
        is_constrained=fields.is_constrained
        if fields.tools or fields.response_format or fields.structured_outputs or fields.text
        else False,
        requested_model=fields.model,
        arrival=arrival,
    )
    is_plain = terms.output_cap is None and not terms.trust_domain and model == fields.model
    changes = NO_CHANGES if is_plain else body_changes(fields, model, terms)
    sent, usage_added = rewrite(body, fields, changes, adds_usage=adds_usage)
    return ParsedRequest(request, sent, usage_added)


def _decode(api: Api, body: bytes) -> RequestBody:
    check_text(body)
    try:
        fields, repeats = DECODERS[api].decode(body)
        too_long = long_integer(body) if len(body) > MAX_DIGITS else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise rejection_of(fault, body) from None
    if repeats:
        _check_once(body)
    if too_long is not None:
        message = f"`{too_long}` holds an integer of more than {MAX_DIGITS} digits."
        raise RequestRejected(Reason.BAD_REQUEST, message, param=too_long)
    return fields


def _check_once(body: bytes) -> None:
    """Raise `RequestRejected` where a field stands twice at the top of the body."""
    if (name := repeated_field(body)) is not None:
        raise RequestRejected(Reason.BAD_REQUEST, f"`{name}` occurs more than once in the body.", param=name)


def _prompt(continued: str, shaping: tuple[Raw, ...], canonical: bytes, model: str, salt: str) -> Prompt:
    # Only the pod that stored the continued response knows its text: what follows it is cached nowhere else.
    if continued or any(shaping):
        parts = [memoryview(raw).tobytes() for raw in shaping]
        seed = hash_seed(model.encode(), continued.encode(), *parts, salt.encode())
    else:
        seed = _plain_seed(model, len(shaping), salt)
    return cut_prompt(canonical, seed)


@lru_cache(maxsize=1024)
def _plain_seed(model: str, parts: int, salt: str) -> int:
    """The seed of nearly all prompts: nothing but model and trust domain set them apart. Both are few."""
    return hash_seed(model.encode(), b"", *[b""] * parts, salt.encode())


def _has_remote_media(api: Api, canonical: bytes, body: bytes) -> bool:
    """Return whether engines fetch part of the prompt from an address: what they find there may differ each time."""
    return api in GENERATING and MEDIA in canonical and REMOTE.search(body) is not None


def _bounded(session: str, owner: str | None) -> str:
    if len(session) > MAX_SESSION_CHARS:
        session = xxh3_128_hexdigest(session.encode("utf-8", "surrogatepass"))
    return scoped_name(session, owner)
