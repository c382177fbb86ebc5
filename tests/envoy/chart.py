"""What the chart says of its processes, as rendered: arguments, settings, probes and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from tests.sources import ROOT

RENDERED = ROOT / "deploy" / "rendered"


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP probe of the kubelet; seconds."""

    path: str
    port: str
    period_s: float
    timeout_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment, DaemonSet or StatefulSet with one container."""

    replicas: int
    arguments: tuple[str, ...]
    grace_s: float
    """From SIGTERM to SIGKILL."""
    surge: int
    """Pods beyond `replicas` during an update."""
    unavailable: int
    probes: dict[str, Probe]
    """By `startup`, `readiness` and `liveness`."""


def read(file: str, kind: str, name: str) -> dict[str, Any]:
    """Return one object of a rendered file. Raises ValueError where it has none such."""
    for document in yaml.safe_load_all((RENDERED / f"{file}.yaml").read_text(encoding="utf-8")):
        if document and document["kind"] == kind and document["metadata"]["name"] == name:
            return dict(document)
    raise ValueError(f"{file}.yaml has no {kind} {name}")


def workload(file: str, kind: str, name: str) -> Workload:
    """Return what the controller and the kubelet do with it."""
    spec = read(file, kind, name)["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    update = (spec.get("strategy") or spec.get("updateStrategy") or {}).get("rollingUpdate", {})
    return Workload(
        replicas=spec.get("replicas", 1),
        arguments=tuple(container.get("args", ())),
        grace_s=pod.get("terminationGracePeriodSeconds", 30),
        surge=update.get("maxSurge", 0),
        unavailable=update.get("maxUnavailable", 1),
        probes={
            when: _probe(container[f"{when}Probe"])
            for when in ("startup", "readiness", "liveness")
            if "httpGet" in container.get(f"{when}Probe", {})
        },
    )


def _probe(found: dict[str, Any]) -> Probe:
    probe = found["httpGet"]
    return Probe(
        probe["path"],
        probe["port"],
        found.get("periodSeconds", 10),
        found.get("timeoutSeconds", 1),
        found.get("failureThreshold", 3),
    )


def settings(file: str) -> dict[str, Any]:
    """Return the gateway's configuration."""
    return dict(yaml.safe_load(read(file, "ConfigMap", "hearth")["data"]["hearth.yaml"]))
