"""Dashboards and rules: their queries name what a running gateway exports, and each alert says what to do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.dashboards import DASHBOARDS, FOLDER, path_of, text_of
from tests.deploy.expressions import groupings, rules, selectors
from tests.deploy.rule_cases import FAULTS
from tests.house.test_public_names import exposed
from tests.sources import ROOT

INCIDENTS = (ROOT / "docs/incidents.md").read_text(encoding="utf-8")

SCRAPED = frozenset(("instance", "job"))
"""Labels that Prometheus adds to every sample."""

PROCESS = frozenset(f"process_{name}" for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds"))


def queries() -> dict[str, str]:
    """Return all expressions by where they stand."""
    found = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    for dashboard in DASHBOARDS:
        for panel in json.loads(path_of(dashboard).read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                found[f"{dashboard.uid}: {panel['title']} {target['refId']}"] = target["expr"]
        for variable in json.loads(path_of(dashboard).read_text(encoding="utf-8"))["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
                found[f"{dashboard.uid}: ${variable['name']}"] = f"sum by ({label}) ({metric})"
    return found


@pytest.fixture(scope="module")
def labels_by_metric(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The labels of all samples that a gateway, its index process and its supervisor export, and of recorded rules."""
    folder = tmp_path_factory.mktemp("gateway")
    found = dict(asyncio.run(exposed(folder)))
    for name in PROCESS:
        found[name] = {"process"}
    found["up"] = set()
    for rule in rules():
        if "record" in rule:
            found[rule["record"]] = groupings(rule["expr"]) - {"le"}
    return found


def metric_of(name: str, known: Mapping[str, set[str]]) -> str | None:
    """Return the family of a sample's name."""
    for candidate in (name, *(name.removesuffix(end) for end in ("_total", "_bucket", "_sum", "_count"))):
        if candidate in known:
            return candidate
    return None


@pytest.mark.parametrize("place", sorted(queries()))
def test_each_query_names_what_a_gateway_exports(place: str, labels_by_metric: Mapping[str, set[str]]) -> None:
    """Every metric, every label that it is selected by, and every label that results are grouped by."""
    expression = queries()[place]
    found = dict[str, set[str]]()
    for name, matched in selectors(expression):
        family = metric_of(name, labels_by_metric)
        assert family is not None, f"{name} is not exported"
        found[name] = labels_by_metric[family] | SCRAPED | ({"le"} if name.endswith("_bucket") else set())
        assert matched <= found[name], f"{name} has no label {matched - found[name]}"
    assert found
    for label in groupings(expression):
        assert all(label in labels for labels in found.values()) or "group_left" in expression, (
            f"not every metric has the label {label}"
        )
        assert any(label in labels for labels in found.values()), f"no metric has the label {label}"


def test_a_wrong_query_is_found(labels_by_metric: Mapping[str, set[str]]) -> None:
    """The parser sees metrics and labels in every position."""
    expression = 'sum by (tier) (rate(hearth_a_total{pool=~"x", b!="c"}[5m])) / on (pool) hearth_c > 0'
    assert dict(selectors(expression)) == {"hearth_a_total": {"pool", "b"}, "hearth_c": set()}
    assert groupings(expression) == {"tier", "pool"}
    assert metric_of("hearth_no_such_total", labels_by_metric) is None


def test_each_panel_is_as_generated() -> None:
    """`python -m tests.deploy.dashboards` writes the files; the folder has no other."""
    assert {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == {
        path_of(each): text_of(each) for each in DASHBOARDS
    }


@pytest.mark.parametrize("alert", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_each_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    """A severity, a summary that names the subject, and a section of the runbook that exists."""
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", INCIDENTS, re.MULTILINE)
    }
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/incidents.md"
    assert anchor in anchors
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["annotations"]["summary"]


def test_each_alert_is_tried_by_promtool() -> None:
    """`make check-deploy` has it fire in a fault of its own."""
    assert set(FAULTS) == {rule["alert"] for rule in rules() if "alert" in rule}
