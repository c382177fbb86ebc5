"""What stands in deploy/, read as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.sources import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
ENVOY = DEPLOY / "envoy"
SCHEMAS = ROOT / "tests" / "deploy" / "schemas"

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    """All documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def objects(folder: Path) -> dict[str, Document]:
    """The objects that a folder's kustomization lists, by kind and name."""
    listed = documents(folder / "kustomization.yaml")[0]["resources"]
    found = [document for name in listed for document in documents(folder / name)]
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in found}
