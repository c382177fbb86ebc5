"""`hearth config check FILE`: every fault of a configuration at once, each with its path. `schema`: its JSON Schema."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.config.loading import check_file
from gateway.config.settings import config_schema
from gateway.discovery.file import read_pods
from gateway.discovery.sources import missing_libraries
from gateway.identity.policy import load_policy
from gateway.runtime.tls import check_certificate
from tenancy.document import Fault, Invalid, Wrong


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Return the exit status: 0 if a gateway would start with the file, else 1."""
    if arguments.action == "schema":
        sys.stdout.write(json.dumps(config_schema(), indent=2) + "\n")
        return 0
    faults = find_faults(Path(arguments.file), variables)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults) or f"{arguments.file}: ok\n")
    return 1 if faults else 0


def find_faults(config: Path, variables: Mapping[str, str]) -> tuple[Fault, ...]:
    """Return the faults of a file, and of the policy, certificates and pod list that it names."""
    try:
        settings = check_file(config, variables)
    except Invalid as invalid:
        return invalid.faults
    faults: list[Fault] = [*missing_libraries(settings)]
    try:
        load_policy(settings, variables)
    except Invalid as invalid:
        faults.extend(invalid.faults)
    for place, files in (("tls", settings.tls), ("extproc.tls", settings.extproc and settings.extproc.tls)):
        try:
            if files:
                check_certificate(files)
        except Invalid as invalid:
            faults.extend(Fault(place, fault.words) for fault in invalid.faults)
    if settings.pod_file is not None:
        faults.extend(_bad_pods(settings.pod_file))
    return tuple(faults)


def _bad_pods(file: Path) -> Iterator[Fault]:
    """Yield the faults of a pod list, without which a gateway would start."""
    try:
        read_pods(file.read_text(encoding="utf-8"))
    except OSError as error:
        yield Fault(str(file), error.strerror or "cannot be read")
    except (Wrong, UnicodeDecodeError) as wrong:
        yield Fault(str(file), str(wrong))
