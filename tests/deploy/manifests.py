"""What is wrong with a set of Kubernetes objects: kinds against schemas of ours, pods against the restricted profile,
objects against each other, and the configuration against the gateway's own reader.

`python -m tests.deploy.manifests FILE...` prints every fault of each file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from agent.command import make_parser as make_agent_parser
from gateway.cli import make_parser
from gateway.config.settings import Settings, read_settings
from gateway.identity.policy import load_policy
from tests.deploy.files import SCHEMAS, Document, documents

WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job")

RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
} | {"secret"}

HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")

HOST_COMPONENTS = frozenset({"agent"})
"""Components that may use the host's network; deploy/README.md names them."""


def faults(objects: Sequence[Document]) -> list[str]:
    """Return every fault, each with the object's kind and name before it."""
    found = list[str]()
    for one in objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        found += [f"{name}: {fault}" for fault in (*schema_faults(one), *_pod_faults(one))]
    return [*found, *_reference_faults(objects), *_configuration_faults(objects), *_command_faults(objects)]


def schema_faults(one: Document) -> Iterator[str]:
    path = SCHEMAS / f"{one['kind'].lower()}.yaml"
    if path.exists():
        validator = Draft202012Validator(yaml.safe_load(path.read_text()))
        for error in validator.iter_errors(one):
            yield f"{error.json_path}: {error.message}"


def _pod_spec(one: Document) -> Document | None:
    found: Document | None = one["spec"]["template"]["spec"] if one["kind"] in WORKLOADS else None
    return found


def _component(one: Document) -> str | None:
    component: str | None = one["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return component


def _pod_faults(one: Document) -> Iterator[str]:
    """The restricted profile of Kubernetes' pod security standards, and a root that cannot be written."""
    spec = _pod_spec(one)
    if spec is None:
        return
    component = _component(one)
    for field in HOST_FIELDS:
        if spec.get(field) and component not in HOST_COMPONENTS:
            yield f"{field} is not restricted"
    for volume in spec.get("volumes", ()):
        if kinds := set(volume) - {"name"} - RESTRICTED_VOLUMES:
            yield f"volume {volume['name']}: {', '.join(kinds)} is not restricted"
    pod = spec.get("securityContext", {})
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        rights = {**pod, **container.get("securityContext", {})}
        wanted = {
            "runAsNonRoot": rights.get("runAsNonRoot") is True and rights.get("runAsUser") != 0,
            "allowPrivilegeEscalation": rights.get("allowPrivilegeEscalation") is False,
            "capabilities": rights.get("capabilities", {}).get("drop") == ["ALL"]
            and not rights["capabilities"].get("add"),
            "seccompProfile": rights.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "privileged": not rights.get("privileged"),
            "readOnlyRootFilesystem": rights.get("readOnlyRootFilesystem") is True,
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
            "resources": "memory" in container.get("resources", {}).get("limits", {}),
        }
        for field, holds in wanted.items():
            if not holds:
                yield f"container {container['name']}: {field} is not restricted"


@dataclass(frozen=True, slots=True)
class References:
    """What the objects of one set may refer to."""

    names: frozenset[tuple[str, str]]
    """Kinds and names."""
    pods: tuple[Any, ...]
    """Pod templates."""
    service_ports: Mapping[str, frozenset[int]]
    """Ports by Service."""

    def chosen(self, selector: Mapping[str, str]) -> list[Any]:
        """Return the pod templates that a selector chooses."""
        return [pod for pod in self.pods if selector.items() <= pod["metadata"]["labels"].items()]

    def ports(self, selector: Mapping[str, str]) -> set[str]:
        """Return the names of the ports of the chosen pods."""
        containers = [each for pod in self.chosen(selector) for each in pod["spec"]["containers"]]
        return {port["name"] for each in containers for port in each.get("ports", ())}

    def missing(self, kind: str, name: str) -> Iterator[str]:
        """Yield a fault if there is no such object."""
        if (kind, name) not in self.names:
            yield f"there is no {name}"


def _service(one: Document, there: References) -> Iterator[str]:
    ports = there.ports(one["spec"]["selector"])
    for port in one["spec"]["ports"]:
        if port["targetPort"] not in ports:
            yield f"port {port['targetPort']} is none of {sorted(ports)}"


def _selecting(one: Document, there: References) -> Iterator[str]:
    if not there.chosen(one["spec"]["selector"]["matchLabels"]):
        yield "its selector chooses no pod"


def _network_policy(one: Document, there: References) -> Iterator[str]:
    labels = one["spec"]["podSelector"]["matchLabels"]
    named = {port["port"] for rule in one["spec"].get("ingress", ()) for port in rule.get("ports", ())}
    if lacking := named - there.ports(labels):
        yield f"chooses no pod, or names ports that it lacks: {sorted(lacking)}"


PATCHES_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}]
"""Rules of the one component that may change anything."""


def _role(one: Document, there: References) -> Iterator[str]:
    if _component(one) == "deletion-cost":
        if one["rules"] != PATCHES_PODS:
            yield "it lists and patches pods, and does nothing else"
        return
    verbs = {verb for rule in one["rules"] for verb in rule["verbs"]}
    if verbs - {"get", "list", "watch"}:
        yield f"the gateway only reads, not {sorted(verbs)}"


def _binding(one: Document, there: References) -> Iterator[str]:
    yield from there.missing(one["roleRef"]["kind"], one["roleRef"]["name"])


def _autoscaler(one: Document, there: References) -> Iterator[str]:
    target = one["spec"]["scaleTargetRef"]
    yield from there.missing(target["kind"], target["name"])


def _inference_pool(one: Document, there: References) -> Iterator[str]:
    picker = one["spec"]["endpointPickerRef"]
    if picker["port"]["number"] not in there.service_ports.get(picker["name"], ()):
        yield f"its picker is not a port of Service/{picker['name']}"


def _route(one: Document, there: References) -> Iterator[str]:
    for rule in one["spec"]["rules"]:
        for backend in rule["backendRefs"]:
            yield from there.missing(backend["kind"], backend["name"])


def _inference_service(one: Document, there: References) -> Iterator[str]:
    yield from there.missing("InferencePool", one["spec"]["router"]["scheduler"]["pool"]["ref"]["name"])


CHECKS: Mapping[str, Callable[[Document, References], Iterator[str]]] = {
    "Service": _service,
    "Deployment": _selecting,
    "DaemonSet": _selecting,
    "StatefulSet": _selecting,
    "PodDisruptionBudget": _selecting,
    "NetworkPolicy": _network_policy,
    "Role": _role,
    "ClusterRole": _role,
    "RoleBinding": _binding,
    "ClusterRoleBinding": _binding,
    "HorizontalPodAutoscaler": _autoscaler,
    "InferencePool": _inference_pool,
    "HTTPRoute": _route,
    "LLMInferenceService": _inference_service,
}


def _reference_faults(objects: Sequence[Document]) -> Iterator[str]:
    """Selectors choose pods that are there, ports are named, accounts and scale targets exist."""
    there = References(
        frozenset((one["kind"], one["metadata"]["name"]) for one in objects),
        tuple(one["spec"]["template"] for one in objects if one["kind"] in WORKLOADS),
        {
            one["metadata"]["name"]: frozenset(port["port"] for port in one["spec"]["ports"])
            for one in objects
            if one["kind"] == "Service"
        },
    )
    if len(there.names) < len(objects):
        yield "two objects have one kind and name"
    for one in objects:
        if check := CHECKS.get(one["kind"]):
            yield from (f"{one['kind']}/{one['metadata']['name']}: {fault}" for fault in check(one, there))


def _configuration_faults(objects: Sequence[Document]) -> Iterator[str]:
    """What the gateway's readers reject, and what does not fit the Deployment."""
    files = {name: text for one in objects if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    (deployment,) = [one for one in objects if one["kind"] == "Deployment" and _component(one) == "gateway"]
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for place in ("hearth-keys", "hearth-tls"):
            (root / place).mkdir()
        for name in ("tls.crt", "tls.key"):
            (root / "hearth-tls" / name).write_text("")
        (root / "policy.yaml").write_text(files.get("policy.yaml", "auth: {default_tenant: any}\n"))
        for name in ("hearth.yaml", "policy.yaml"):
            text = files.get(name, "") or (root / name).read_text()
            for place in ("hearth-keys", "hearth-tls"):
                text = text.replace(f"/etc/{place}", str(root / place))
            (root / name).write_text(text.replace("/etc/hearth/", f"{root}/"))
        settings, table = read_settings((root / "hearth.yaml").read_text(), {})
        yield from (f"hearth.yaml: {fault}" for fault in table.errors)
        if not table.errors:
            load_policy(settings, {})
            yield from _deployment_faults(settings, spec, container)


def _command_faults(objects: Sequence[Document]) -> Iterator[str]:
    """Command lines of our image that `hearth` rejects."""
    for one in objects:
        for container in (_pod_spec(one) or {"containers": ()})["containers"]:
            words = container.get("args", ())
            if words[:1] not in (["agent"], ["serve"], ["deletion-cost"]):
                continue
            parser, rest = (make_agent_parser(), words[1:]) if words[0] == "agent" else (make_parser(words), words)
            try:
                parser.parse_args(rest)
            except SystemExit:
                yield f"{one['kind']}/{one['metadata']['name']}: hearth {' '.join(words)} is no command line"


def _deployment_faults(settings: Settings, spec: Document, container: Document) -> Iterator[str]:
    times = settings.timeouts
    if spec["terminationGracePeriodSeconds"] <= times.lame_duck_s + times.drain_s:
        yield "terminationGracePeriodSeconds is less than lame duck and drain"
    probe = container["readinessProbe"]
    if times.lame_duck_s <= probe["periodSeconds"] * probe["failureThreshold"]:
        yield "lame_duck_s ends before the readiness probe has failed"
    opened = {"http": settings.listen.port}
    if settings.metrics_listen is not None:
        opened["metrics"] = settings.metrics_listen.port
    if settings.extproc is not None:
        opened["picker"] = settings.extproc.listen.port
    if settings.admin_listen is not None:
        opened["admin"] = settings.admin_listen.port
    if settings.supply is not None and settings.supply.listen is not None:
        opened["scaler"] = settings.supply.listen.port
    for port in container["ports"]:
        if opened.get(port["name"]) != port["containerPort"]:
            yield f"port {port['name']} is not the one that the gateway opens"
    sources = {kind for kind in ("kubernetes",) if getattr(settings.sources, kind)}
    if bool(sources) != bool(spec["automountServiceAccountToken"]):
        yield "the service account's token is mounted without need, or missing"


def main() -> int:
    """Return the exit status: 0 if no file has a fault, else 1."""
    found = [f"{path}: {fault}" for path in sys.argv[1:] for fault in faults(documents(Path(path)))]
    print("".join(f"{fault}\n" for fault in found) or f"{len(sys.argv) - 1} files: ok\n", end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
