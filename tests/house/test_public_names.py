"""`docs/public-names.json` is complete: each old public name leads to one that exists, and no renamed one remains."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from gateway.cascades.features import CascadeOptions
from routing.rejection import Reason
from tenancy.document import InvalidDocument
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy
from tenancy.report.policy_schema import policy_schema
from tests.sources import ROOT, read_sources

NAMES: dict[str, Any] = json.loads((ROOT / "docs/public-names.json").read_text(encoding="utf-8"))
"""Section to old name to new name; None: deleted."""

SECTIONS = {
    "metrics",
    "labels",
    "config",
    "policy",
    "flags",
    "headers",
    "reasons",
    "log_fields",
    "usage_fields",
    "receipt_fields",
    "admin_fields",
}


def test_the_map_has_its_sections() -> None:
    """One per kind of public name, and the names that are new."""
    assert set(NAMES) == SECTIONS | {"schema", "units", "added"}
    assert set(NAMES["added"]) == SECTIONS


# metrics and labels

# config and flags

# policy, reasons and headers

DIGEST = "0" * 64

HEARTH_HEADER = re.compile(r"x-hearth-[a-z]+(?:-[a-z]+)*")


def policy_keys(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of each key; `*` stands for a name, `[]` for an entry of a list."""
    for each in schema.get("anyOf", ()):
        yield from policy_keys(each, path)
    for key, held in schema.get("properties", {}).items():
        at = f"{path}.{key}" if path else key
        if "additionalProperties" in schema:  # Others only require a key.
            yield at
            yield from policy_keys(held, at)
    if isinstance(held := schema.get("additionalProperties"), Mapping):
        yield from policy_keys(held, f"{path}.*")
    if isinstance(held := schema.get("items"), Mapping):
        yield from policy_keys(held, f"{path}[]")


def hearth_headers() -> set[str]:
    """Return the x-hearth-* headers in the sources of the gateway, and the options in a body under `hearth`."""
    found = {f"body hearth.{name}" for name in CascadeOptions.__struct_fields__}
    for source in read_sources("gateway", "routing", "tenancy"):
        for node in ast.walk(source.tree):
            value = node.value if isinstance(node, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            found.update(HEARTH_HEADER.findall(text) if isinstance(text, str) else ())
    return found


NOW: dict[str, set[str]] = {
    "policy": set(policy_keys(policy_schema())),
    "reasons": {reason.value for reason in Reason},
    "headers": hearth_headers(),
}


@pytest.mark.parametrize("section", NOW)
def test_policy_reasons_and_headers_are_in_the_map(section: str) -> None:
    """Each name of today is the new name of an old one, or added; no other is in the map."""
    assert NOW[section] == {new for new in NAMES[section].values() if new is not None} | set(NAMES["added"][section])


@pytest.mark.parametrize("section", NOW)
def test_no_renamed_policy_key_reason_or_header_remains(section: str) -> None:
    """Old names are not kept as aliases."""
    assert not {old for old, new in NAMES[section].items() if new != old} & NOW[section]


def policy_with(path: str) -> dict[str, Any]:
    """Return a policy with one key of an earlier version at a path of the map."""
    document: dict[str, Any] = {"auth": {"keys": {"a": [DIGEST]}}}
    table, _, key = path.rpartition(".")
    if table == "auth.keys.*[]":
        return {"auth": {"keys": {"a": [{"digest": DIGEST, key: 1}]}}}
    first, _, name = table.partition(".")
    return document | {first: {"a": {key: 1}} if name else {key: 1}}


@pytest.mark.parametrize("old", [old for old, new in NAMES["policy"].items() if new != old])
def test_a_renamed_policy_key_is_rejected_with_the_new_one(old: str) -> None:
    """One fault: it names the new key, and the unit where that changed, or says that the key was removed."""
    with pytest.raises(InvalidDocument) as invalid:
        read_policy(yaml.safe_dump(policy_with(old)), {}, InlineFiles())
    [fault] = invalid.value.errors
    new = NAMES["policy"][old]
    assert fault.path.endswith(old.rpartition(".")[2])
    assert fault.message.startswith("removed: " if new is None else f"renamed to `{new.rpartition('.')[2]}`")
    assert ("seconds" in fault.message) == (old in NAMES["units"])


def test_durations_of_a_policy_have_a_factor() -> None:
    """From milliseconds to seconds."""
    renamed = {old for old, new in NAMES["policy"].items() if old.endswith("_ms") and new != old}
    assert {old: NAMES["units"].get(old) for old in renamed} == dict.fromkeys(renamed, 0.001)


# log, usage, receipt and admin fields
