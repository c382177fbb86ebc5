"""`docs/public-names.json` is complete: each old public name leads to one that exists, and no renamed one remains."""

from __future__ import annotations

import ast
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from gateway.app.build import build
from gateway.cluster.index_process import IndexProcessServer
from gateway.cluster.metrics import SupervisorMetrics
from gateway.cluster.worker_pool import WorkerPool
from gateway.config.settings import read_settings
from gateway.pipeline.attempt import AttemptStatus, ResumeBlocker
from gateway.runtime.event_log import EventLog
from gateway.runtime.host import HostProcess
from routing.pods import PodState
from routing.retries import RetryKind
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

EVERYTHING = """
redis: redis://127.0.0.1:1
discovery: {static: {pods: ["http://127.0.0.1:2"]}}
extproc: {listen: "127.0.0.1:0", token: abc}
kv_events: true
roles: true
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


async def exposed(folder: Path) -> dict[str, set[str]]:
    """Every metric that a gateway with everything, its index process and its supervisor expose, with its labels."""
    settings, faults = read_settings(EVERYTHING, {})
    assert settings is not None, faults
    gateway = build(settings, None, HostProcess(folder=folder, kv_index_socket=folder / "index"))
    index, supervisor = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    IndexProcessServer(settings, folder / "index", cast("EventLog", lambda *_, **__: None), index)
    supervisor.register(SupervisorMetrics(cast("WorkerPool", SimpleNamespace(children=(), slots=()))))
    try:
        families = [family for registry in (gateway.registry, index, supervisor) for family in registry.collect()]
    finally:
        await gateway.probes.close()
    ends = {"counter": "_total", "info": "_info"}
    return {
        family.name + ends.get(family.type, ""): {
            *getattr(family, "_labelnames", ()),
            *(label for sample in family.samples for label in sample.labels),
        }
        - ({"le"} if family.type == "histogram" else set())
        for family in families
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
    assert sorted(metrics) == sorted(hoped)
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

# policy, reasons and headers

# log, usage, receipt and admin fields
