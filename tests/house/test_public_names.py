"""`docs/public-names.json` is complete: each old public name leads to one that exists, and no renamed one remains."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from argparse import ArgumentParser, _HelpAction, _SubParsersAction, _VersionAction
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

import agent.command as agent_command
import simulator.command as simulate
from agent.settings import SETTINGS as AGENT_SETTINGS
from cascade.record import CascadeResult, CascadeStep
from gateway import cli
from gateway.app.build import build
from gateway.cascades.features import CascadeOptions
from gateway.cluster.index_process import IndexProcessServer
from gateway.cluster.metrics import SupervisorMetrics
from gateway.cluster.worker_pool import WorkerPool
from gateway.config.renamed_keys import RENAMED_KEYS, fault_of_renamed
from gateway.config.settings import config_schema, read_settings
from gateway.observe.request_log import REQUEST_FIELDS, USAGE_FIELDS
from gateway.pipeline.attempt import AttemptStatus, ResumeBlocker
from gateway.pipeline.record import REQUEST_EVENT, Receipt
from gateway.runtime.event_log import EventLog
from gateway.runtime.events import EVENTS
from gateway.runtime.host import HostProcess
from routing.candidates import CandidateShown
from routing.decision.placement import AttemptReceipt
from routing.pods import PodState
from routing.rejection import Reason
from routing.request import Usage
from routing.retries import RetryKind
from simulator.profiling import command as profile
from tenancy.document import InvalidDocument, InvalidValue
from tenancy.policy import InlineFiles
from tenancy.reading.policy import read_policy
from tenancy.report.policy_schema import policy_schema
from tests.sources import ROOT, read_sources

NAMES: dict[str, Any] = json.loads((ROOT / "docs/public-names.json").read_text(encoding="utf-8"))
"""Section to old name to new name; None: deleted."""

ADVICE = "list new names under `added` in docs/public-names.json, sorted; remove those that are gone"

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

EVERYTHING = """
redis: redis://127.0.0.1:1
discovery: {static: {pods: ["http://127.0.0.1:2"]}}
extproc: {listen: "127.0.0.1:0", token: abc, return_listen: "127.0.0.1:0"}
providers:
  endpoints:
    - {name: a, provider: b, region: c, base_url: "https://d", api: openai, models: {e: f}}
kv_events: true
roles: true
tracing: {endpoint: "http://127.0.0.1:3"}
supply: {listen: "127.0.0.1:0"}
canaries: [{name: a, pool: b}]
"""
"""Settings under which every collector is registered."""

LABEL_VALUES: Mapping[tuple[str, str], tuple[type[StrEnum], ...]] = {
    ("hearth_upstreams", "state"): (PodState,),
    ("hearth_attempts_total", "result"): (AttemptStatus,),
    ("hearth_pair_attempts_total", "result"): (AttemptStatus,),
    ("hearth_retry_budget_exhausted_total", "kind"): (RetryKind,),
    ("hearth_stream_resume_failures_total", "reason"): (ResumeBlocker,),
}
"""New metric and label to the enumerations of its values; those of others are texts somewhere in the sources."""

VALUE_SOURCES = ("gateway", "routing")


async def families_of(folder: Path) -> list[Metric]:
    """Every metric family that a gateway with everything, its index process and its supervisor expose."""
    settings, faults = read_settings(EVERYTHING, {})
    assert settings is not None, faults
    gateway = build(settings, None, HostProcess(folder=folder, kv_index_socket=folder / "index"))
    index, supervisor = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    IndexProcessServer(settings, folder / "index", cast("EventLog", lambda *_, **__: None), index)
    supervisor.register(SupervisorMetrics(cast("WorkerPool", SimpleNamespace(children=(), slots=()))))
    supervisor.register(gateway.reloads)
    try:
        return [family for registry in (gateway.registry, index, supervisor) for family in registry.collect()]
    finally:
        await gateway.probes.close()


def exposed_name(family: Metric) -> str:
    """As `/metrics` shows a family of which there is one sample for each set of labels."""
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def labels_of(family: Metric) -> list[str]:
    """Its labels, in their order."""
    named = (*getattr(family, "_labelnames", ()), *(label for sample in family.samples for label in sample.labels))
    return [label for label in dict.fromkeys(named) if not (label == "le" and family.type == "histogram")]


async def exposed(folder: Path) -> dict[str, set[str]]:
    """Every metric of these families, with its labels."""
    return {
        exposed_name(family): set(labels_of(family))
        for family in await families_of(folder)
        if family.name.startswith("hearth_")
    }


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every metric of today, with its labels."""
    return asyncio.run(exposed(tmp_path_factory.mktemp("host")))


def new_names(name: str) -> tuple[str, ...]:
    """What became of an old metric: none, one, or several where one label was split into metrics."""
    found = NAMES["metrics"][name]
    return () if found is None else (found,) if isinstance(found, str) else tuple(found)


def old_labels() -> Iterator[tuple[str, str, str | None, str | None]]:
    """Metric, label, old value or None, and what became of the label or the value."""
    for key, new in NAMES["labels"].items():
        metric, _, label = key.removesuffix("}").partition("{")
        name, is_value, value = label.partition("=")
        yield metric, name, value if is_value else None, new


def texts(folders: Iterable[str]) -> set[str]:
    """Every string constant of the sources in these folders."""
    trees = (
        ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in (ROOT / folder).rglob("*.py")
    )
    return {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_each_metric_is_in_the_map(metrics: dict[str, set[str]]) -> None:
    """What is exposed is what old names lead to and what was added; no renamed or deleted name is exposed."""
    assert len(metrics) > 100
    hoped = {new for old in NAMES["metrics"] for new in new_names(old)} | set(NAMES["added"]["metrics"])
    assert sorted(metrics) == sorted(hoped), ADVICE
    assert [old for old in NAMES["metrics"] if old not in new_names(old) and old in metrics] == []


def test_no_source_names_an_old_metric() -> None:
    """Neither whole nor without its ending, but where an old name is a new one's."""
    ends = ("_total", "_info")
    stems = {
        name: next((name.removesuffix(end) for end in ends if name.endswith(end)), name) for name in NAMES["metrics"]
    }
    kept = {
        each
        for old in NAMES["metrics"]
        for new in new_names(old)
        for each in (new, *(new.removesuffix(end) for end in ends))
    }
    gone = {each for name, stem in stems.items() for each in (name, stem)} - kept
    assert len(gone) > 100
    assert sorted(gone & texts((*VALUE_SOURCES, "simulator", "agent", "bench"))) == []


def test_each_label_is_in_the_map(metrics: dict[str, set[str]]) -> None:
    """A metric has the labels that those of its old metrics lead to, and those that were added, and no others."""
    hoped: dict[str, set[str]] = defaultdict(set)
    for metric, _, value, new in old_labels():
        if value is None and new is not None:
            for name in new_names(metric):
                hoped[name] |= set(new.split(","))
    for added in NAMES["added"]["labels"]:
        metric, _, label = added.removesuffix("}").partition("{")
        hoped[metric].add(label.partition("=")[0])
    assert {name: labels for name, labels in metrics.items() if labels} == hoped


def test_each_label_value_is_there() -> None:
    """New values of an enumeration are in it and old ones are not; all others are texts of the sources."""
    known, checked = texts(VALUE_SOURCES), 0
    for metric, old_label, value, new in old_labels():
        if value is None:
            continue
        label = NAMES["labels"][f"{metric}{{{old_label}}}"]
        for name in new_names(metric):
            kinds = LABEL_VALUES.get((name, label), ())
            members = {str(member) for kind in kinds for member in kind}
            assert value not in members, (metric, value)
            assert new is None or new in (members or known), (metric, new)
            checked += bool(kinds)
    assert checked > 30


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
    listed = {new for new in NAMES["config"].values() if new is not None} | set(NAMES["added"]["config"])
    assert listed == CONFIG_KEYS, ADVICE


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
    reported = [fault for fault in root.errors if fault.message.startswith(("renamed to ", "removed: "))]
    return {fault.path.replace("[0]", "[]"): fault.message for fault in reported}


@pytest.mark.parametrize("old", RENAMED_CONFIG)
def test_a_renamed_configuration_key_is_rejected_with_the_new_one(old: str) -> None:
    """The fault of the key, or of its section if only that was renamed: it names the new key and the unit."""
    faults = config_faults(config_with(old))
    path = max((path for path in faults if f"{old}.".startswith(f"{path}.")), key=len)
    if (new := RENAMED_CONFIG[old]) is None:
        assert faults[path].startswith("removed: ")
        assert faults[path].endswith("delete this key")
        return
    inner = old.removeprefix(path)
    assert new.endswith(inner)
    reported = re.fullmatch(r"renamed to `([a-z_.]+)`(, a number of seconds: divide by (\d+))?", faults[path])
    assert reported is not None
    plain = new.removesuffix(inner).replace("[]", "")
    assert plain == reported[1] or plain.endswith(f".{reported[1]}")
    if old in NAMES["units"]:
        assert reported[3] is not None
        assert 1 / float(reported[3]) == NAMES["units"][old]


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
    commands = ("serve", "config", "policy", "keys", "cascade", "spend", "receipts", "scale", "doctor", "deletion-cost")
    gateway = cli.make_parser(commands)
    agent = set(option_flags(agent_command.make_parser(), "agent"))
    words = {f"agent --on-stop {word}" for word in ("deregister", "keep")}
    outside = {*option_flags(simulate.make_parser(), "simulate"), *option_flags(profile.make_parser(), "profile")}
    return set(option_flags(gateway, "")) | outside | agent | words


def test_flags_are_in_the_map() -> None:
    """Each flag of today is the new name of an old one, or added; no other is in the map."""
    listed = {new for new in NAMES["flags"].values() if new is not None} | set(NAMES["added"]["flags"])
    assert listed == flags_now(), ADVICE


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
    listed = {new for new in NAMES[section].values() if new is not None} | set(NAMES["added"][section])
    assert NOW[section] == listed, ADVICE


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


# log, usage, receipt and admin fields: a path is a field's names with dots between; `*` stands for any name, and
# `path=text` for a text at a path.

EVENT_SOURCES = ("gateway", "agent")

ADMIN_VIEWS = {
    "/fleet": (
        *("gateway/fleet/view.py", "gateway/canary/controller.py:show"),
        *("gateway/cluster/admin.py:_fleet", "gateway/cluster/admin.py:merge_fleets"),
    ),
    "/limits": ("gateway/limits/monitoring.py:_show", "gateway/observe/admin.py:_limits"),
    "/cascades": (
        *("gateway/cascades/cascades.py:_show", "gateway/cascades/cascades.py:_show_drift"),
        "gateway/cascades/live_collection.py:status",
        "gateway/observe/admin.py:_cascades",
    ),
    "/pods/drain": ("gateway/observe/admin.py:_set_drained",),
    "/reload": ("gateway/app/reload.py", "gateway/cluster/supervisor.py:reload"),
}
"""Page to the files, or functions of files, whose dict keys are its fields."""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def events_in_code() -> dict[str, set[str]]:
    """Event code to its fields, by all calls that write one."""
    found: dict[str, set[str]] = {}
    for folder in EVENT_SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            aliases = _pairs_of_codes(tree)
            for call in calls(tree):
                if not _writes_event(call):
                    continue
                for code in _codes(call.args[1], aliases):
                    found.setdefault(code, set()).update(_fields(call))
    return found


def _writes_event(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    return name in ("_log_event", "log_event", "_log_from_thread", "UnusedGuarantee") and len(call.args) >= 2


def _pairs_of_codes(tree: ast.AST) -> dict[str, set[str]]:
    """Local names that hold one of several codes."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            for at, target in enumerate(node.targets[0].elts):
                if isinstance(target, ast.Name) and target.id == "event":
                    branches = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else []
                    picked = [each.elts[at] for each in branches if isinstance(each, ast.Tuple)]
                    found["event"] = {str(each.value) for each in picked if isinstance(each, ast.Constant)}
    return found


def _codes(argument: ast.expr, aliases: dict[str, set[str]]) -> set[str]:
    match argument:
        case ast.Constant(value=str(code)):
            return {code}
        case ast.IfExp():
            return _codes(argument.body, aliases) | _codes(argument.orelse, aliases)
        case ast.Name(id=name) if name in aliases:
            return aliases[name]
    return set() if ast.unparse(argument) in PASSED_ON else {ast.unparse(argument)}


PASSED_ON = {"event", "words", "silence.event"}
"""Codes that another call of the same module has named."""


def _fields(call: ast.Call) -> set[str]:
    found = set[str]()
    for keyword in call.keywords:
        if keyword.arg is not None:
            found.add(keyword.arg)
        elif "engine_fields" in ast.unparse(keyword.value):
            found |= {"upstream", "dp_rank"}
    return found - {"level"}


def struct_paths(kind: Any, prefix: str = "") -> set[str]:
    """The paths of a struct's JSON."""
    found = set[str]()
    for each in msgspec.structs.fields(kind):
        path = f"{prefix}{each.encode_name}"
        text = str(each.type)
        inner = next((known for known in STRUCTS if known.__name__ in text), None)
        if inner is not None:
            found |= struct_paths(inner, f"{path}.")
        else:
            found.add(f"{path}.*" if "dict[" in text else path)
    return found


STRUCTS = (CandidateShown, AttemptReceipt, CascadeStep, CascadeResult, Usage)


def dict_keys(place: str) -> set[str]:
    """All texts that are keys in a file, or in one of its functions."""
    path, _, function = place.partition(":")
    tree: ast.AST = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    if function:
        tree = next(node for node in ast.walk(tree) if getattr(node, "name", None) == function)
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            found |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found |= {str(node.slice.value)} if isinstance(node.slice, ast.Constant) else set()
    return found


def new_paths(section: str, prefix: str = "") -> set[str]:
    """What the map and its additions say exists now, of paths with this prefix, which is left out."""
    every = [*NAMES[section].values(), *NAMES["added"][section]]
    return {name.removeprefix(prefix) for name in every if name and name.startswith(prefix) and "=" not in name}


def test_each_event_has_a_code_of_the_list() -> None:
    """Each line that is written in code, and each code is written somewhere."""
    assert set(events_in_code()) | {REQUEST_EVENT} | OWN_LINES == set(EVENTS)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in EVENTS)
    assert len(set(EVENTS.values())) >= len(EVENTS) - 1, "one message for each; Redis comes back to two components"


def test_events_and_their_fields_are_in_the_map() -> None:
    """Each code and each field of it, and none that is no longer written."""
    found = {f"{code}.{name}" for code, fields in events_in_code().items() for name in fields} | set(EVENTS)
    known = new_paths("log_fields", "event.") | {REQUEST_EVENT}
    assert found - known == set()
    assert {name for name in known - found if name.partition(".")[0] not in SPREAD} == set()


OWN_LINES = {"log_write_failed", "log_write_recovered"}
"""Of the writer of lines itself, on standard error."""

SPREAD = {
    *OWN_LINES,
    *("listening", "server_found", "reload_succeeded", "process_exited", "role_changed", "library_log"),
    *("cascade_uncalibrated", "cascade_without_guarantee", "cascade_calibration_unusable"),
}
"""Events some fields of which stand in a mapping, or are written by another call than the one that names the code."""


def test_lines_of_the_logs_are_in_the_map() -> None:
    """Request log, usage record and route log, field by field."""
    assert set(REQUEST_FIELDS.names) == new_paths("log_fields", "request.")
    usage = set(USAGE_FIELDS.names) - {"cascade"} | struct_paths(CascadeResult, "cascade.")
    assert usage == new_paths("usage_fields")
    assert dict_keys("gateway/observe/route_log.py") == new_paths("log_fields", "route.")


def test_receipts_are_in_the_map() -> None:
    """Field by field, down to the scores of candidates; a supervisor adds the worker."""
    assert struct_paths(Receipt) | {"worker"} == new_paths("receipt_fields")


@pytest.mark.parametrize("page", ADMIN_VIEWS)
def test_admin_pages_are_in_the_map(page: str) -> None:
    """Each name that a page shows."""
    shown = set[str]().union(*map(dict_keys, ADMIN_VIEWS[page]))
    known = {part for path in new_paths("admin_fields", f"{page} ") for part in path.split(".")} - {"*"}
    assert shown - known == set()
    assert known - shown <= {"worker"}, "which a supervisor adds"


@pytest.mark.parametrize("section", ["log_fields", "usage_fields", "receipt_fields", "admin_fields"])
def test_no_renamed_field_remains(section: str) -> None:
    """An old path that leads to another one is no path of today."""
    renamed = {old for old, new in NAMES[section].items() if new != old}
    assert renamed & (set(NAMES[section].values()) | set(NAMES["added"][section])) == set()


def test_the_docs_list_each_event() -> None:
    """With cause and action, and no other."""
    page = (ROOT / "docs/logs.md").read_text(encoding="utf-8")
    row = r"^\| `([a-z_]+)` \| (?:debug|info|warning|error)[^|]* \| [^|]+ \| [^|]+ \|$"
    assert sorted(re.findall(row, page, re.MULTILINE)) == sorted(set(EVENTS) - {REQUEST_EVENT})


def test_the_docs_list_each_field_of_a_line() -> None:
    """Of the request log and of the usage record."""
    page = (ROOT / "docs/logs.md").read_text(encoding="utf-8")
    assert [name for name in (*REQUEST_FIELDS.names, *USAGE_FIELDS.names) if f"`{name}`" not in page] == []
