"""`hearth config check FILE`: every fault of a configuration at once, each with its path. `schema`: its JSON Schema."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from gateway.config.schema import config_schema
from gateway.config.sources import check_file
from gateway.discovery.sources import missing_libraries
from gateway.identity.load import load_policy
from gateway.tls import check_certificate
from tenancy.document import Fault, Invalid


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """The exit status: 0 where a gateway would start with it, 1 where it would not."""
    if arguments.action == "schema":
        sys.stdout.write(json.dumps(config_schema(), indent=2) + "\n")
        return 0
    faults = find_faults(Path(arguments.file), variables)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults) or f"{arguments.file}: ok\n")
    return 1 if faults else 0


def find_faults(config: Path, variables: Mapping[str, str]) -> tuple[Fault, ...]:
    """What is wrong with a file, and with the policy and the certificate that it names."""
    try:
        settings = check_file(config, variables)
    except Invalid as invalid:
        return invalid.faults
    faults: list[Fault] = [*missing_libraries(settings)]
    try:
        load_policy(settings, variables)
    except Invalid as invalid:
        faults.extend(invalid.faults)
    try:
        if settings.tls:
            check_certificate(settings.tls)
    except Invalid as invalid:
        faults.extend(invalid.faults)
    return tuple(faults)
