"""The manifests agree with each other and with the gateway; `make check-deploy` asks the published schemas."""

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.config.settings import Settings, read_settings
from gateway.identity.policy import load_policy
from tests.deploy.files import KUBERNETES, SCHEMAS, Document, documents, objects

PICKER = KUBERNETES / "picker"


@pytest.fixture
def manifests() -> dict[str, Document]:
    return objects(KUBERNETES)


@pytest.fixture
def pod(manifests: dict[str, Document]) -> Document:
    """The Deployment's pod."""
    found: Document = manifests["Deployment/hearth"]["spec"]["template"]
    return found


@pytest.fixture
def settings(manifests: dict[str, Document], tmp_path: Path) -> Settings:
    """The ConfigMap's configuration as the gateway reads it, its paths led to a folder of ours."""
    reported = manifests["ConfigMap/hearth"]["data"]
    (tmp_path / "keys").mkdir()
    for name, text in reported.items():
        words = text.replace("/etc/hearth-keys", str(tmp_path / "keys")).replace("/etc/hearth", str(tmp_path))
        (tmp_path / name).write_text(words)
    settings, root = read_settings((tmp_path / "hearth.yaml").read_text(), {})
    assert not root.errors, root.errors
    return settings


def test_every_manifest_is_listed() -> None:
    """A file that nobody lists is applied by nobody."""
    for folder in (KUBERNETES, PICKER):
        listed = {*documents(folder / "kustomization.yaml")[0]["resources"], "kustomization.yaml"}
        assert {path.name for path in folder.glob("*.yaml")} == listed


def test_configuration_and_policy_are_right(settings: Settings) -> None:
    """The gateway takes what the ConfigMap says, policy included."""
    policy = load_policy(settings, {})
    assert policy is not None
    assert policy.tenants


def test_there_is_time_to_stop(settings: Settings, pod: Document) -> None:
    """Kubernetes waits longer than the gateway needs at most, and the lame duck outlives the readiness probe."""
    times = settings.timeouts
    assert pod["spec"]["terminationGracePeriodSeconds"] > times.lame_duck_s + times.drain_s
    probe = pod["spec"]["containers"][0]["readinessProbe"]
    assert times.lame_duck_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_ports_are_those_that_the_gateway_opens(
    settings: Settings, pod: Document, manifests: dict[str, Document]
) -> None:
    """Named once in the container, used by name everywhere else."""
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports["http"] == settings.listen.port
    assert settings.metrics_listen is not None
    assert ports["metrics"] == settings.metrics_listen.port
    assert settings.extproc is not None
    assert ports["picker"] == settings.extproc.listen.port
    for name in ("hearth", "hearth-metrics"):
        for port in manifests[f"Service/{name}"]["spec"]["ports"]:
            assert port["targetPort"] in ports


def test_selectors_choose_the_gateway(pod: Document, manifests: dict[str, Document]) -> None:
    """Everything that selects pods selects those of the Deployment."""
    labels = pod["metadata"]["labels"]
    selectors = [
        manifests["Service/hearth"]["spec"]["selector"],
        manifests["Service/hearth-metrics"]["spec"]["selector"],
        manifests["Deployment/hearth"]["spec"]["selector"]["matchLabels"],
        manifests["PodDisruptionBudget/hearth"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy/hearth"]["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_the_gateway_runs_with_the_least_right(pod: Document, manifests: dict[str, Document]) -> None:
    """As nobody, on a root that cannot be written, without a capability; as an account of its own."""
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in pod["spec"]["containers"]:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
    assert f"ServiceAccount/{pod['spec']['serviceAccountName']}" in manifests


def test_the_pool_names_our_service_as_its_picker(manifests: dict[str, Document]) -> None:
    """By a port that the Service has, and the route names the pool."""
    found = objects(PICKER)
    (pool,) = [found[name] for name in found if name.startswith("InferencePool/")]
    (route,) = [found[name] for name in found if name.startswith("HTTPRoute/")]
    picker = pool["spec"]["endpointPickerRef"]
    service = manifests[f"Service/{picker['name']}"]
    assert picker["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])


@pytest.mark.parametrize("kind", ["inferencepool", "httproute"])
def test_kinds_without_a_schema_of_kubernetes_are_as_documented(kind: str) -> None:
    """By schemas of ours, which say no to a word that is not in the documents."""
    schema = yaml.safe_load((SCHEMAS / f"{kind}.yaml").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    (document,) = documents(PICKER / f"{kind}.yaml")
    validator.validate(document)
    assert not validator.is_valid(document | {"spec": document["spec"] | {"extensionRef": {"name": "hearth"}}})
