"""The queries of dashboards and rules, parsed as far as tests need it: metrics, and the labels they are read by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.sources import ROOT

RULES = ROOT / "deploy/prometheus/hearth-rules.yaml"
WORDS = frozenset(
    (
        *("sum", "max", "min", "avg", "count", "topk", "bottomk", "quantile", "rate", "increase", "histogram_quantile"),
        *("scalar", "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool"),
    )
)
"""Functions, aggregations and keywords of PromQL that our queries use."""

SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?")
GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Return each metric that an expression selects, with the labels it is selected by."""
    bare = GROUPING.sub(" ", expression)
    for found in SELECTOR.finditer(re.sub(r"\[[^\]]*\]", "", bare)):
        name, matchers = found.groups()
        if name not in WORDS and not bare[found.end() :].lstrip().startswith("("):
            yield name, set(MATCHER.findall(matchers or ""))


def groupings(expression: str) -> set[str]:
    """Return all labels that an expression groups or joins by."""
    return {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",") if label.strip()}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]
