"""`docs/public-names.json` is complete: each old public name leads to one that exists, and no renamed one remains."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, _HelpAction, _SubParsersAction, _VersionAction
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

import agent.command as agent_command
import simulator.command as simulate
from agent.settings import SETTINGS as AGENT_SETTINGS
from gateway import cli
from gateway.config.renamed_keys import RENAMED_KEYS, fault_of_renamed
from gateway.config.settings import config_schema, read_settings
from tenancy.document import InvalidValue
from tests.sources import ROOT

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

RENAMED_CONFIG = {old: new for old, new in NAMES["config"].items() if old != new}


def config_keys(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted path of each key of a configuration; `[]` stands for an entry of a list."""
    for each in schema.get("anyOf", ()):
        yield from config_keys(each, path)
    for key, held in schema.get("properties", {}).items():
        at = f"{path}.{key}" if path else key
        yield at
        yield from config_keys(held, at)
    if isinstance(held := schema.get("items"), Mapping):
        yield from config_keys(held, f"{path}[]")


CONFIG_KEYS = set(config_keys(config_schema()))


def test_configuration_keys_are_in_the_map() -> None:
    """Each key of today is the new name of an old one, or added; no other is in the map."""
    assert {new for new in NAMES["config"].values() if new is not None} | set(NAMES["added"]["config"]) == CONFIG_KEYS


def test_no_renamed_configuration_key_remains() -> None:
    """Old keys are not kept as aliases."""
    assert not set(RENAMED_CONFIG) & CONFIG_KEYS


def config_with(path: str) -> dict[str, Any]:
    """Return a configuration with one key of an earlier version at a path of the map."""
    document: Any = 1
    for part in reversed(path.split(".")):
        key = part.removesuffix("[]")
        document = {key: document if part == key else [document]}
    return dict(document)


def config_faults(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the faults of renamed keys by path, without the indices of lists."""
    _, root = read_settings(yaml.safe_dump(document), {})
    told = [fault for fault in root.errors if fault.message.startswith(("renamed to ", "removed: "))]
    return {fault.path.replace("[0]", "[]"): fault.message for fault in told}


@pytest.mark.parametrize("old", RENAMED_CONFIG)
def test_a_renamed_configuration_key_is_rejected_with_the_new_one(old: str) -> None:
    """The fault of the key, or of its section if only that was renamed: it names the new key and the unit."""
    faults = config_faults(config_with(old))
    path = max((path for path in faults if f"{old}.".startswith(f"{path}.")), key=len)
    if (new := RENAMED_CONFIG[old]) is None:
        assert faults[path] == "removed: delete this key"
        return
    inner = old.removeprefix(path)
    assert new.endswith(inner)
    told = re.fullmatch(r"renamed to `([a-z_.]+)`(, a number of seconds: divide by (\d+))?", faults[path])
    assert told is not None
    plain = new.removesuffix(inner).replace("[]", "")
    assert plain == told[1] or plain.endswith(f".{told[1]}")
    if old in NAMES["units"]:
        assert told[3] is not None
        assert 1 / float(told[3]) == NAMES["units"][old]


@pytest.mark.parametrize("old", [old for old, new in RENAMED_KEYS.items() if "." in old])
def test_an_old_key_in_a_renamed_section_is_rejected_as_well(old: str) -> None:
    """After the section was renamed, its old keys still name the new ones."""
    section, _, key = old.rpartition(".")
    path = f"{RENAMED_KEYS.get(section) or section}.{key}"
    if path == RENAMED_KEYS[old]:
        assert fault_of_renamed(path) is None
    else:
        assert fault_of_renamed(path)


def test_milliseconds_and_microseconds_of_a_configuration_have_a_factor() -> None:
    """From either to seconds."""
    factors = {"_ms": 0.001, "us_per_token.cpu": 1e-6, "us_per_token.storage": 1e-6}
    expected = {old: factor for old in NAMES["config"] for end, factor in factors.items() if old.endswith(end)}
    assert {old: NAMES["units"].get(old) for old in expected} == expected
    assert expected


def option_flags(parser: ArgumentParser, command: str) -> Iterator[str]:
    """Yield `COMMAND --flag` of a parser and its subcommands, and `COMMAND --flag VALUE` where values are words."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, inner in action.choices.items():
                yield from option_flags(inner, f"{command} {name}".strip())
        elif not isinstance(action, _HelpAction | _VersionAction):
            yield from (f"{command} {flag}" for flag in action.option_strings if flag.startswith("--"))


def flags_now() -> set[str]:
    """Return the flags of all commands."""
    gateway = cli.make_parser(["serve", "config", "policy", "keys", "cascade"])
    agent = set(option_flags(agent_command.make_parser(), "agent"))
    words = {f"agent --on-stop {word}" for word in ("deregister", "keep")}
    return set(option_flags(gateway, "")) | set(option_flags(simulate.make_parser(), "simulate")) | agent | words


def test_flags_are_in_the_map() -> None:
    """Each flag of today is the new name of an old one, or added; no other is in the map."""
    assert {new for new in NAMES["flags"].values() if new is not None} | set(NAMES["added"]["flags"]) == flags_now()


def test_no_renamed_flag_remains() -> None:
    """Old flags are not kept as aliases."""
    assert not {old for old, new in NAMES["flags"].items() if old != new} & flags_now()


@pytest.mark.parametrize(
    ("word", "accepted"), [("deregister", True), ("keep", True), ("leave", False), ("stay", False)]
)
def test_words_of_on_stop_are_those_of_the_map(word: str, *, accepted: bool) -> None:
    """The old words are rejected."""
    [setting] = [setting for setting in AGENT_SETTINGS if setting.name == "on-stop"]
    if accepted:
        assert setting.parse(word) == word
    else:
        with pytest.raises(InvalidValue):
            setting.parse(word)


# policy, reasons and headers

# log, usage, receipt and admin fields
