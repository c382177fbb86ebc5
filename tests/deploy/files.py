"""What stands in deploy/, read as values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.sources import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "charts" / "hearth"
RENDERED = DEPLOY / "rendered"
ENVOY = DEPLOY / "envoy"
SCHEMAS = ROOT / "tests" / "deploy" / "schemas"

Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    """All documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]
