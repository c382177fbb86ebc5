"""The rendered manifests have no fault, a planted one of each kind is found, and the chart's values have a schema.

`make check-deploy` renders all value sets with Helm's library and holds all of them against the same functions.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.deploy.files import CHART, RENDERED, Document, documents
from tests.deploy.manifests import faults, schema_faults

FILES = sorted(RENDERED.glob("*.yaml"))


def of_kind(objects: list[Document], kind: str) -> Any:
    """The first object of a kind."""
    return next(one for one in objects if one["kind"] == kind)


def of_component(objects: list[Document], kind: str, component: str) -> Any:
    """The object of a kind that belongs to a component."""
    labelled = (one for one in objects if one["kind"] == kind)
    return next(one for one in labelled if one["metadata"]["labels"]["app.kubernetes.io/component"] == component)


def container(objects: list[Document]) -> Any:
    return of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rendered_manifests_have_no_fault(path: Path) -> None:
    """Kinds, pod security, references and the gateway's configuration."""
    assert faults(documents(path)) == []


PLANTED: dict[str, tuple[str, Callable[[list[Document]], object], str]] = {
    "a root container": (
        "proxy",
        lambda all_: container(all_)["securityContext"].update(runAsUser=0),
        "runAsNonRoot is not restricted",
    ),
    "a writable root": (
        "proxy",
        lambda all_: container(all_)["securityContext"].pop("readOnlyRootFilesystem"),
        "readOnlyRootFilesystem",
    ),
    "no memory limit": ("proxy", lambda all_: container(all_)["resources"].pop("limits"), "resources"),
    "a port that the gateway does not open": (
        "proxy",
        lambda all_: container(all_)["ports"][0].update(containerPort=8001),
        "port http is not the one",
    ),
    "a target port without a name": (
        "proxy",
        lambda all_: of_kind(all_, "Service")["spec"]["ports"][0].update(targetPort="htp"),
        "port htp is none of",
    ),
    "a selector of other pods": (
        "proxy",
        lambda all_: of_kind(all_, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(a="b"),
        "its selector chooses no pod",
    ),
    "a right to write": (
        "proxy",
        lambda all_: of_kind(all_, "Role")["rules"][0]["verbs"].append("patch"),
        "the gateway only reads",
    ),
    "a right beyond patching pods": (
        "supply",
        lambda all_: of_component(all_, "Role", "deletion-cost")["rules"][0]["verbs"].append("delete"),
        "it lists and patches pods, and does nothing else",
    ),
    "a flag that deletion-cost does not have": (
        "supply",
        lambda all_: of_component(all_, "Deployment", "deletion-cost")["spec"]["template"]["spec"]["containers"][0][
            "args"
        ].append("--force"),
        "is no command line",
    ),
    "a binding to nothing": (
        "proxy",
        lambda all_: of_kind(all_, "RoleBinding")["roleRef"].update(name="other"),
        "there is no other",
    ),
    "an unknown key of the configuration": (
        "proxy",
        lambda all_: of_kind(all_, "ConfigMap")["data"].update({"hearth.yaml": "lisen: 0.0.0.0:8000\n"}),
        "unknown key",
    ),
    "too little time to drain": (
        "proxy",
        lambda all_: of_kind(all_, "Deployment")["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=60),
        "terminationGracePeriodSeconds",
    ),
    "a network policy for a port that is not there": (
        "proxy",
        lambda all_: of_kind(all_, "NetworkPolicy")["spec"]["ingress"][0]["ports"][0].update(port="htp"),
        "names ports that it lacks",
    ),
    "a pool with an old key": (
        "picker",
        lambda all_: of_kind(all_, "InferencePool")["spec"].update(extensionRef={"name": "hearth"}),
        "extensionRef",
    ),
    "a pool whose picker has another port": (
        "picker",
        lambda all_: of_kind(all_, "InferencePool")["spec"]["endpointPickerRef"]["port"].update(number=9),
        "its picker is not a port",
    ),
    "a route to no pool": (
        "picker",
        lambda all_: of_kind(all_, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0].update(name="other"),
        "there is no other",
    ),
    "a gateway in the host's network": (
        "agent",
        lambda all_: of_kind(all_, "Deployment")["spec"]["template"]["spec"].update(hostNetwork=True),
        "hostNetwork is not restricted",
    ),
    "a flag that the agent does not have": (
        "agent",
        lambda all_: of_kind(all_, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"].append("--rak"),
        "is no command line",
    ),
    "a volume of the host": (
        "agent",
        lambda all_: of_kind(all_, "DaemonSet")["spec"]["template"]["spec"]["volumes"].append(
            {"name": "proc", "hostPath": {"path": "/proc"}}
        ),
        "hostPath is not restricted",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """One fault of each kind."""
    file, plant, words = PLANTED[name]
    objects = copy.deepcopy(documents(RENDERED / f"{file}.yaml"))
    plant(objects)
    found = faults(objects)
    assert any(words in fault for fault in found), found


OTHER_KINDS: dict[str, tuple[str, Document, Document]] = {
    "ServiceMonitor": (
        "monitoring.coreos.com/v1",
        {"selector": {"matchLabels": {"a": "b"}}, "endpoints": [{"port": "metrics", "interval": "15s"}]},
        {"endpoints": [{"port": "metrics", "interval": "15"}]},
    ),
    "PrometheusRule": (
        "monitoring.coreos.com/v1",
        {"groups": [{"name": "a", "rules": [{"alert": "A", "expr": "up == 0", "for": "5m"}]}]},
        {"groups": [{"name": "a", "rules": [{"alert": "A", "expresion": "up == 0"}]}]},
    ),
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {
            "scaleTargetRef": {"name": "a"},
            "triggers": [
                {"type": "prometheus", "metadata": {"serverAddress": "http://a", "query": "b", "threshold": "1"}}
            ],
        },
        {"triggers": [{"type": "prometheus", "metadata": {"serverAddress": "http://a", "threshold": "1"}}]},
    ),
    "LLMInferenceService": (
        "serving.kserve.io/v1alpha2",
        {"model": {"uri": "hf://a/b"}, "router": {"scheduler": {"pool": {"ref": {"name": "a"}}}}},
        {"router": {"scheduler": {"pool": {"name": "a"}}}},
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_kinds_without_a_schema_of_kubernetes_have_ours(kind: str) -> None:
    """It accepts what the specification has, and finds a key that it has not."""
    version, spec, wrong = OTHER_KINDS[kind]
    one: Document = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    assert list(schema_faults(one)) == []
    assert list(schema_faults(one | {"spec": {**spec, **wrong}})) != []


def test_every_value_has_a_schema() -> None:
    """The defaults and all value sets pass it; an unknown key and a key that the chart sets itself do not."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    validator = Draft7Validator(schema)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(defaults) == set(schema["properties"]) - {"global"}
    for values in (defaults, *(yaml.safe_load(path.read_text()) for path in (CHART / "ci").glob("*.yaml"))):
        assert list(validator.iter_errors(values)) == []
    for wrong in (
        {"replica": 2},
        {"config": {"listen": "0.0.0.0:1"}},
        {"mode": "prox"},
        {"image": {"digest": "sha256:1"}},
    ):
        assert not validator.is_valid(wrong), wrong


def test_there_are_twelve_value_sets_or_more() -> None:
    """So that each template and each branch of it is rendered."""
    assert len(list((CHART / "ci").glob("*-values.yaml"))) >= 12
