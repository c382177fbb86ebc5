"""The schema that editors get, and the reader, say the same of every document.

Only what one word has to do with another is the reader's alone.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from tenancy.document import ConfigError, InvalidDocument
from tenancy.policy import InlineFiles
from tenancy.reading.fields import HEADERS, JWT, KEY, QUOTA, TENANT, TIER
from tenancy.reading.policy import read_policy
from tenancy.report.policy_schema import policy_schema
from tests.tenancy.documents import DIGEST, VALUES, documents

SCHEMA = policy_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

BETWEEN_WORDS = (
    *("unknown tenant", "unknown tier", "unknown group", "duplicate key: tenant"),
    *("conflicts with", "requires max_budget", "`downgrade` requires", "`relax` requires"),
    *(
        "forms a cycle",
        "is itself an alias",
        "is not in the tenant's models",
        "is in no tenant's models",
        "values add up to",
    ),
    *("a header is listed under more than one key", "is an HMAC digest", "tokens cannot create tenants"),
    "is reserved for tenants",
    *("tenant name",),
)
"""Faults that no schema can tell."""


def faults(document: object) -> list[ConfigError]:
    """What the reader says of each word by itself."""
    try:
        read_policy(yaml.safe_dump(document), {"HERE": "x"}, InlineFiles())
    except InvalidDocument as invalid:
        return [fault for fault in invalid.errors if not any(words in fault.message for words in BETWEEN_WORDS)]
    return []


def test_the_schema_is_one() -> None:
    """By the rules of schemas."""
    Draft202012Validator.check_schema(SCHEMA)


def both(document: dict[str, Any]) -> tuple[list[ConfigError], list[str]]:
    return faults(document), [error.message for error in VALIDATOR.iter_errors(document)]


GIVEN = {"default_tenant": "a"}

TOLD = {"issuer": "https://sso.example", "audiences": ["a"], "default_tenant": "a"}

VARIABLE = "${HERE}"
"""May become anything: only the reader knows."""

NEVER_RIGHT = {("whole", "auth"), ("whole", "other"), ("tenants", "other"), ("keys", "digest")}

SOUND = {"auth": {"default_tenant": "a"}, "tenants": {"a": {}}}

PLACES: dict[str, tuple[Iterable[str], Callable[[str, object], dict[str, Any]]]] = {
    "whole": (("auth", "tiers", "defaults", "tenants", "headers", "other"), lambda key, value: {key: value}),
    "auth": (
        ("keys", "keys_dir", "hmac_secret", "default_tenant", "jwt"),
        lambda key, value: {"auth": GIVEN | {key: value}},
    ),
    "tiers": (TIER, lambda key, value: {"tiers": {"x": {key: value}}}),
    "defaults": ((*TENANT, *QUOTA, "groups", "per_user"), lambda key, value: {"defaults": {key: value}}),
    "tenants": ((*TENANT, *QUOTA, "other"), lambda key, value: {"tenants": {"a": {key: value}}}),
    "groups": (QUOTA, lambda key, value: {"tenants": {"a": {"groups": {"x": {key: value}}}}}),
    "headers": (HEADERS, lambda key, value: {"headers": {key: value}}),
    "jwt": (JWT, lambda key, value: {"auth": {"jwt": TOLD | {key: value}}}),
    "keys": (KEY, lambda key, value: {"auth": {"keys": {"a": [{"digest": DIGEST} | {key: value}]}}}),
    "listed": (("digest",), lambda _, value: {"auth": {"keys": {"a": [value]}}}),
}
"""Every word of a policy, in every place where it may stand."""


@pytest.mark.parametrize(("place", "word"), [(place, word) for place, (words, _) in PLACES.items() for word in words])
def test_schema_and_reader_agree_on_every_field(place: str, word: str) -> None:
    """What one refuses the other does too; each word has values that are right and some that are not."""
    make = PLACES[place][1]
    seen = set()
    for value in VALUES:
        if value == VARIABLE:
            continue
        reported, shown = both(SOUND | make(word, value))
        assert bool(reported) == bool(shown), (value, reported, shown)
        seen.add(bool(reported))
    assert seen == {True, False} or (place, word) in NEVER_RIGHT


@given(documents())
def test_schema_and_reader_agree_on_documents(document: dict[str, Any]) -> None:
    """However words stand together."""
    reported, shown = both({"auth": {"default_tenant": "a"}, **document})
    assert bool(reported) == bool(shown), (reported, shown)


def objects(schema: Any, path: str = "") -> list[tuple[str, list[str]]]:
    """Every mapping of a schema, with its keys."""
    found = []
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("additionalProperties") is False:
            found.append((path, sorted(schema["properties"])))
        for key, held in schema.items():
            found += objects(held, f"{path}/{key}")
    elif isinstance(schema, list):
        for at, held in enumerate(schema):
            found += objects(held, f"{path}/{at}")
    return found


def test_every_field_says_what_it_is() -> None:
    """An editor shows it."""
    assert len(objects(SCHEMA)) >= 8

    def undescribed(schema: Any) -> list[str]:
        if not isinstance(schema, dict):
            return []
        missing = [
            key
            for key, held in schema.get("properties", {}).items()
            if schema.get("additionalProperties") is False and not held.get("description")
        ]
        return missing + [word for held in schema.values() for word in undescribed(held)]

    assert undescribed(SCHEMA) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("auth: {keys_dir: k}\ntenants: {a: {rmp: 5}}", "'rmp' was unexpected"),
        ("tenants: {}", "'auth' is a required property"),
        ("auth: {keys_dir: k}\ntenants: {a: {on_overload: wait}}", "'wait' is not"),
    ],
)
def test_a_schema_says_what_is_wrong(source: str, words: str) -> None:
    """As an editor would show it."""
    errors = [deepest.message for error in VALIDATOR.iter_errors(yaml.safe_load(source)) for deepest in ends(error)]
    assert any(words in message for message in errors), errors


def ends(error: Any) -> list[Any]:
    """An error, or those of which it is made."""
    return [end for part in error.context for end in ends(part)] if error.context else [error]
