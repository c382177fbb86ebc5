"""InferenceObjectives and InferenceModelRewrites, from an API server to the values that requests use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.discovery.kubernetes_objectives import InferenceRules, ObservedRewrite, read_objective, read_rewrite
from tests.gateway.discovery.api_server import ApiServer, Object, api_server
from tests.gateway.discovery.cluster import PODS, POOLS, VLLM, WITHIN, a_pod, a_pool, followed

GROUP = "inference.networking.x-k8s.io"
OBJECTIVES = f"/apis/{GROUP}/v1alpha2{WITHIN}/inferenceobjectives"
REWRITES = f"/apis/{GROUP}/v1alpha2{WITHIN}/inferencemodelrewrites"
POD = "http://10.0.0.1:8000"


def metadata(name: str, day: int) -> Object:
    return {"name": name, "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}


def an_objective(name: str, priority: int | None, pool: str = "p", day: int = 1) -> Object:
    return {
        "metadata": metadata(name, day),
        "spec": {"poolRef": {"group": "inference.networking.k8s.io", "name": pool}, "priority": priority},
    }


def a_rule(*models: str, **weights: int | None) -> Object:
    targets = [
        {"modelRewrite": name} if weight is None else {"modelRewrite": name, "weight": weight}
        for name, weight in weights.items()
    ]
    return {"matches": [{"model": {"type": "Exact", "value": name}} for name in models], "targets": targets}


def a_rewrite(name: str, *rules: Object, pool: str = "p", day: int = 1) -> Object:
    return {"metadata": metadata(name, day), "spec": {"poolRef": {"name": pool}, "rules": list(rules)}}


class Stated:
    """What is logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, **fields: Any) -> None:
        assert level == "warning"
        self.events.append((event, fields))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        await running.put(PODS, a_pod("a", "10.0.0.1"))
        await running.put(POOLS, a_pool("p", VLLM, 8000))
        yield running


def parsed(made: Object) -> ObservedRewrite:
    found = read_rewrite(Raw(msgspec.json.encode(made)), "ns", ("p",))
    assert found is not None
    return found


async def test_objectives_and_rewrites_come_change_and_go(server: ApiServer, tmp_path: Path) -> None:
    """Those of the followed pools, from the list and from the watch; requests see each state."""
    await server.put(OBJECTIVES, an_objective("batch", -5))
    await server.put(OBJECTIVES, an_objective("of-another-pool", 7, pool="q"))
    await server.put(REWRITES, a_rewrite("r", a_rule("gpt", small=1, large=3)))
    rules = InferenceRules(Stated(), lambda: 0.5)
    async with followed(server, tmp_path, rules=rules, inference_pools=("p",), objectives=GROUP) as received:
        await received.hears(POD)
        await received.until(lambda: rules.priority_of("batch") == -5 and rules.rewrite("gpt") == "large")
        assert rules.priority_of("of-another-pool") is None
        assert rules.rewrite("else") == "else"
        await server.put(OBJECTIVES, an_objective("batch", None))
        await server.put(REWRITES, a_rewrite("r", a_rule("gpt", small=None)))
        await received.until(lambda: rules.priority_of("batch") == 0 and rules.rewrite("gpt") == "small")
        await server.delete(OBJECTIVES, "batch")
        await server.delete(REWRITES, "r")
        await received.until(lambda: rules.priority_of("batch") is None and rules.rewrite("gpt") == "gpt")


async def test_without_the_key_neither_is_listed(server: ApiServer, tmp_path: Path) -> None:
    """The default makes no request for either kind."""
    server.forbidden = {"inferenceobjectives", "inferencemodelrewrites"}
    async with followed(server, tmp_path, inference_pools=("p",)) as received:
        await received.hears(POD)
        assert received.trouble == ""
        assert server.lists == 2


async def test_pods_do_not_wait_for_objects_that_are_forbidden(server: ApiServer, tmp_path: Path) -> None:
    """A missing right or kind is shown as the source's error; the other kind still counts."""
    server.forbidden = {"inferenceobjectives"}
    await server.put(REWRITES, a_rewrite("r", a_rule("gpt", small=None)))
    rules = InferenceRules(Stated(), lambda: 0.5)
    async with followed(server, tmp_path, rules=rules, inference_pools=("p",), objectives=GROUP) as received:
        await received.hears(POD)
        await received.until(lambda: rules.rewrite("gpt") == "small" and "403 Forbidden" in received.trouble)


async def test_an_invalid_object_is_ignored_and_logged(server: ApiServer, tmp_path: Path) -> None:
    """The others stay in effect."""
    await server.put(OBJECTIVES, an_objective("good", 3))
    await server.put(OBJECTIVES, {**an_objective("bad", 3), "spec": {"priority": "high", "poolRef": {"name": "p"}}})
    rules = InferenceRules(Stated(), lambda: 0.5)
    async with followed(server, tmp_path, rules=rules, inference_pools=("p",), objectives=GROUP) as received:
        await received.until(lambda: rules.priority_of("good") == 3)
        assert rules.priority_of("bad") is None
        assert "kubernetes_object_invalid" in received.stated


def test_the_oldest_object_wins_and_the_other_is_logged_once() -> None:
    """Whatever the order in which they are found; the first rule of an object wins in silence."""
    stated = Stated()
    rules = InferenceRules(stated, lambda: 0.0)
    old = parsed(a_rewrite("zz", a_rule("gpt", first=None), a_rule("gpt", second=None), day=1))
    new = parsed(a_rewrite("aa", a_rule("gpt", third=None), a_rule("own", fourth=None), day=2))
    for _ in range(2):
        rules.update("source", (), (new, old))
    rules.update("source", (), (old, new))
    assert (rules.rewrite("gpt"), rules.rewrite("own")) == ("first", "fourth")
    conflict = {"kind": "InferenceModelRewrite", "name": "ns/aa", "key": "gpt", "used": "ns/zz"}
    assert stated.events == [("kubernetes_object_conflict", conflict)]
    rules.update("source", (), (new,))
    assert rules.rewrite("gpt") == "third"


def test_the_same_object_in_two_clusters_is_merged() -> None:
    """Of equal age and name, the source that reported first is used."""
    rules = InferenceRules(Stated(), lambda: 0.0)
    for cluster, target in (("east", "small"), ("west", "large")):
        rules.update(cluster, (), (parsed(a_rewrite("r", a_rule("gpt", **{target: None}))),))
    assert rules.rewrite("gpt") == "small"


def test_objectives_of_two_namespaces_with_one_name_are_merged() -> None:
    """Equal ones are no conflict; an unlisted source keeps its last list."""
    stated = Stated()
    rules = InferenceRules(stated, lambda: 0.0)
    for namespace, made in (
        ("a", an_objective("x", 1, day=2)),
        ("b", an_objective("x", 2, day=1)),
        ("c", an_objective("x", 2, day=3)),
    ):
        found = read_objective(Raw(msgspec.json.encode(made)), namespace, ("p",))
        assert found is not None
        rules.update(namespace, (found,), None)
    rules.update("b", None, None)
    assert rules.priority_of("x") == 2
    conflict = {"kind": "InferenceObjective", "name": "a/x", "key": "x", "used": "b/x"}
    assert stated.events == [("kubernetes_object_conflict", conflict)]


def test_a_rule_for_every_model_is_ignored_and_logged() -> None:
    """The other rules of its object count; a process that is not to log stays silent."""
    made = parsed(a_rewrite("r", {"targets": [{"modelRewrite": "x"}]}, a_rule("gpt", small=None)))
    stated, silent = Stated(), Stated()
    rules = InferenceRules(stated, lambda: 0.0)
    rules.update("source", None, (made,))
    InferenceRules(silent, lambda: 0.0, warns=False).update("source", None, (made,))
    assert (rules.rewrite("gpt"), rules.rewrite("any")) == ("small", "any")
    assert [(event, fields["name"]) for event, fields in stated.events] == [("kubernetes_object_invalid", "ns/r")]
    assert silent.events == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (a_rule("gpt"), "targets"),
        (a_rule("gpt", a=1, b=None), "for all targets or for none"),
        (a_rule("gpt", a=0), "a weight is 1 to"),
        (a_rule("gpt", a=1_000_001), "a weight is 1 to"),
        (a_rule("gpt", **{"": 1}), "modelRewrite is empty"),
        (a_rule("", a=1), "only Exact matches"),
        ({**a_rule(a=1), "matches": [{"model": {"type": "Prefix", "value": "g"}}]}, "only Exact matches"),
        (a_rule(*map(str, range(65)), a=1), "at most 64 matches"),
    ],
)
def test_a_rewrite_that_breaks_its_schema_is_rejected(rule: Object, words: str) -> None:
    """With the field in the error."""
    with pytest.raises(ValueError, match=words):
        parsed(a_rewrite("r", rule))
