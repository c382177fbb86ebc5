"""`hearth import litellm|llm-d|envoy-ai-gateway FILE`: writes configuration and policy, and lists what was not kept."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gateway.commands.admin import printable
from gateway.commands.check import find_config_errors
from gateway.migration.document import Imported, Note
from gateway.migration.envoy_ai_gateway import import_envoy_ai_gateway
from gateway.migration.litellm import import_litellm
from gateway.migration.llm_d import import_llm_d
from tenancy.document import InvalidValue, load_all_yaml

HEAD = "# Written by `hearth import {project}` from {file}; what was not kept is in imported.txt.\n"

MAX_FILE_BYTES = 16 * 1024 * 1024


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    projects = parser.add_subparsers(dest="project", metavar="PROJECT", required=True)
    into = ArgumentParser(add_help=False)
    into.add_argument("file", metavar="FILE", type=Path)
    into.add_argument(
        "--dir", type=Path, default=Path(), metavar="FOLDER", help="folder of the files (default: this one)"
    )
    into.add_argument("--listen", metavar="HOST:PORT", help="listen address for clients")
    into.add_argument("--force", action="store_true", help="replace files that are there")
    litellm = projects.add_parser("litellm", parents=[into], help="LiteLLM's config.yaml")
    litellm.add_argument("--keys", type=Path, metavar="FILE", help="JSON of /key/list?return_full_object=true")
    litellm.add_argument("--teams", type=Path, metavar="FILE", help="JSON of /team/list")
    llm_d = projects.add_parser(
        "llm-d", parents=[into], help="EndpointPickerConfig, InferencePools, objectives and rewrites, as one YAML file"
    )
    llm_d.add_argument("--pod", action="append", default=[], metavar="URL", help="use these pods instead of the pools")
    projects.add_parser("envoy-ai-gateway", parents=[into], help="AIGatewayRoutes, backends and traffic policies")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Return the exit status: 0 if the files were written and pass their check, else 1."""
    try:
        imported = _imported(arguments, variables)
        config = _write(imported, arguments)
    except (InvalidValue, OSError) as trouble:
        sys.stderr.write("".join(f"hearth: {printable(line)}\n" for line in str(trouble).splitlines()))
        return 1
    sys.stdout.write(report(imported))
    faults = [str(fault) for fault in find_config_errors(config, variables)]
    if not imported.names_pods:
        faults.append(f"{config}: names no vLLM pod: add `discovery` (docs/discovery.md)")
    sys.stdout.write("".join(f"to do: {printable(fault)}\n" for fault in faults))
    if not faults:
        sys.stdout.write(f"{config}: ok\nNext: hearth serve --config {config}\n")
    return 1 if faults else 0


def report(imported: Imported) -> str:
    """Return the lists of what changed its meaning and of what has no counterpart, complete."""
    parts = (("Kept with another meaning", imported.changed), ("Not kept", imported.unmapped))
    return "".join(f"{title} ({len(notes)}):\n{_lines(notes)}" for title, notes in parts)


def _lines(notes: Iterable[Note]) -> str:
    return "".join(f"  {printable(note.place)}: {printable(note.words)}\n" for note in notes)


def _imported(arguments: Namespace, variables: Mapping[str, str]) -> Imported:
    documents = _documents(arguments.file)
    match arguments.project:
        case "litellm":
            rows = [_rows(path, word) for path, word in ((arguments.keys, "keys"), (arguments.teams, "teams"))]
            if len(documents) != 1 or not isinstance(documents[0], Mapping):
                raise InvalidValue(f"{arguments.file}: must be one mapping, as LiteLLM's config.yaml")
            return import_litellm(documents[0], variables, *rows)
        case "llm-d":
            return import_llm_d(documents, arguments.pod)
        case _:
            return import_envoy_ai_gateway(documents)


def _documents(path: Path) -> list[Any]:
    """Return the documents of a YAML file. Raises `InvalidValue`."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidValue(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
    try:
        return [one for one in load_all_yaml(path.read_text(encoding="utf-8")) if one is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidValue(f"{path}: is not YAML: {error}") from None


def _rows(path: Path | None, word: str) -> list[Any]:
    """Return the objects of an export: a list, or a mapping with the list under `word`. Raises `InvalidValue`."""
    if path is None:
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path}: is not JSON: {error}") from None
    found = found.get(word) if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidValue(f"{path}: must be a list of objects, or a mapping with it as `{word}`")
    return found


def _write_new(path: Path, text: str) -> None:
    """Write a file in place of the one that is there, if any; never through a link to another place."""
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _write(imported: Imported, arguments: Namespace) -> Path:
    """Write hearth.yaml, policy.yaml and imported.txt. Returns the path of hearth.yaml. Raises `InvalidValue`."""
    folder: Path = arguments.dir
    config = {"listen": arguments.listen} if arguments.listen else {}
    config |= imported.config
    texts = {"hearth.yaml": config | ({"policy": "policy.yaml"} if imported.policy is not None else {})}
    if imported.policy is not None:
        texts["policy.yaml"] = imported.policy
    for name in (*texts, "imported.txt"):
        if os.path.lexists(folder / name) and not arguments.force:
            raise InvalidValue(f"{folder / name} is there already: pass --force to replace it, or another --dir")
    folder.mkdir(parents=True, exist_ok=True)
    head = HEAD.format(project=arguments.project, file=arguments.file.name)
    for name, values in texts.items():
        text = yaml.safe_dump(values, sort_keys=False, width=120, allow_unicode=True)
        _write_new(folder / name, head + text)
    _write_new(folder / "imported.txt", report(imported))
    if imported.policy is not None and imported.policy["auth"].get("keys_dir"):
        (folder / "keys").mkdir(exist_ok=True)
    return folder / "hearth.yaml"
