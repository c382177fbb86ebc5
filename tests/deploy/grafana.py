"""What is wrong with Grafana's files: provisioning by its documented keys, dashboards in the classic model.

`python -m tests.deploy.grafana FOLDER` prints every fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

PROVIDERS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "providers"],
    "properties": {
        "apiVersion": {"const": 1},
        "providers": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "type", "options"],
                "properties": {
                    **{name: {"type": "string"} for name in ("name", "folder", "folderUid")},
                    **{name: {"type": "boolean"} for name in ("disableDeletion", "allowUiUpdates", "editable")},
                    "orgId": {"type": "integer"},
                    "type": {"const": "file"},
                    "updateIntervalSeconds": {"type": "integer"},
                    "options": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["path"],
                        "properties": {"path": {"type": "string"}, "foldersFromFilesStructure": {"type": "boolean"}},
                    },
                },
            },
        },
    },
}

DATASOURCES = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "datasources"],
    "properties": {
        "apiVersion": {"const": 1},
        "deleteDatasources": {"type": "array"},
        "datasources": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "type", "url"],
                "properties": {"type": {"const": "prometheus"}, "access": {"enum": ["proxy", "direct"]}},
            },
        },
    },
}

DASHBOARD = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels"],
    "properties": {
        "id": {"type": "null"},
        "uid": {"type": "string", "maxLength": 40, "pattern": "^[A-Za-z0-9_-]+$"},
        "title": {"type": "string", "minLength": 1},
        "schemaVersion": {"type": "integer"},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos"],
                "properties": {
                    "gridPos": {
                        "type": "object",
                        "required": ["h", "w", "x", "y"],
                        "properties": {"w": {"maximum": 24}, "x": {"maximum": 23}},
                    }
                },
            },
        },
    },
}


def faults(folder: Path) -> Iterator[str]:
    """Yield every fault of the files in a folder, each with its path."""
    for path in sorted(folder.rglob("*.yaml")):
        schema = DATASOURCES if path.parent.name == "datasources" else PROVIDERS
        yield from _of(path, yaml.safe_load(path.read_text()), schema)
    ids = dict[str, Path]()
    for path in sorted(folder.rglob("*.json")):
        dashboard = json.loads(path.read_text())
        yield from _of(path, dashboard, DASHBOARD)
        if (first := ids.setdefault(str(dashboard.get("uid")), path)) != path:
            yield f"{path}: has the uid of {first}"


def _of(path: Path, document: Any, schema: dict[str, Any]) -> Iterator[str]:
    for error in Draft202012Validator(schema).iter_errors(document):
        yield f"{path}: {error.json_path}: {error.message}"


def main() -> int:
    """Return the exit status: 0 if there is no fault, else 1."""
    found = list(faults(Path(sys.argv[1])))
    print("".join(f"{fault}\n" for fault in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
