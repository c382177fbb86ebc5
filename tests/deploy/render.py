"""Renders the chart with each of its value sets, by the library of Helm, and asks the schemas of Kubernetes.

Runs in .venv-deploy, which has both; imports nothing of ours. `render.py FOLDER` writes one file per value set there;
`render.py --keep` rewrites deploy/rendered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[2]

CHART = ROOT / "deploy" / "charts" / "hearth"

RENDERED = ROOT / "deploy" / "rendered"

KEPT = {"proxy": "03-policy-keys", "picker": "06-picker", "agent": "10-agent", "supply": "15-supply"}
"""Files of deploy/rendered by the value set that they are rendered from."""

RELEASE, NAMESPACE = "hearth", "inference"

KUBERNETES = "1.37"

BUILT_IN = frozenset({"", "apps", "autoscaling", "batch", "policy", "rbac.authorization.k8s.io", "networking.k8s.io"})
"""API groups whose schemas Kubernetes publishes; the kinds of others have schemas of ours beside this file."""

HEAD = "# Rendered from deploy/charts/hearth with ci/{name}-values.yaml; written by `make check-deploy ARGS=--keep`.\n"


def value_sets() -> dict[str, dict[str, Any]]:
    """Return the value sets of the chart by name."""
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return {path.name.removesuffix("-values.yaml"): yaml.safe_load(path.read_text()) for path in files}


def render(chart: helm_python.Chart, values: dict[str, Any]) -> str:
    """Return the objects as one YAML text. Raises `helm_python.HelmError`, also for values that the schema rejects."""
    chart.validate_schema(values)
    files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    texts = [text.strip() for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return "\n---\n".join(text.removeprefix("---").strip() for text in texts if text.removeprefix("---").strip()) + "\n"


def schema_faults(text: str) -> Iterator[str]:
    """Yield what Kubernetes' schemas reject."""
    for document in yaml.safe_load_all(text):
        if document is None or document["apiVersion"].rpartition("/")[0] not in BUILT_IN:
            continue
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{document['kind']}/{document['metadata']['name']}: {error}"


def main() -> int:
    """Return the exit status: 0 if every rendering is valid and deploy/rendered is current, else 1."""
    keeps, faults = "--keep" in sys.argv, list[str]()
    folder = None if keeps else Path(sys.argv[1])
    report = helm_python.lint(CHART, {}, strict=True)
    faults += [
        f"lint: {message['path']}: {message['error']}" for message in report["messages"] if message["severity"] > 1
    ]
    with helm_python.Chart.load(CHART) as chart:
        texts = {name: render(chart, values) for name, values in value_sets().items()}
    for name, text in texts.items():
        faults += [f"{name}: {fault}" for fault in schema_faults(text)]
        if folder is not None:
            (folder / f"{name}.yaml").write_text(text)
    for file, name in KEPT.items():
        path, text = RENDERED / f"{file}.yaml", HEAD.format(name=name) + texts[name]
        if keeps:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            faults.append(f"{path.relative_to(ROOT)} is not what the chart renders: run make check-deploy ARGS=--keep")
    print("".join(f"{fault}\n" for fault in faults), end="")
    print(f"{len(texts)} value sets, {helm_python.helm_sdk_version()} of Helm, Kubernetes {KUBERNETES}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
