"""`hearth config check FILE`: every fault of a configuration at once, each with its path.

`schema` prints its JSON Schema, `migrate` rewrites renamed keys.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from gateway.config.loading import check_file
from gateway.config.migrating import migrate
from gateway.config.settings import config_schema
from gateway.discovery.file import parse_pods
from gateway.discovery.sources import missing_libraries
from gateway.identity.policy import load_policy
from gateway.runtime.tls import check_certificate
from tenancy.document import ConfigError, InvalidDocument, InvalidValue


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Return the exit status: 0 if a gateway would start with the file, else 1."""
    if arguments.action == "schema":
        sys.stdout.write(json.dumps(config_schema(), indent=2) + "\n")
        return 0
    if arguments.action == "migrate":
        return _migrate(Path(arguments.file), writes=arguments.write)
    faults = find_config_errors(Path(arguments.file), variables)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults) or f"{arguments.file}: ok\n")
    return 1 if faults else 0


def _migrate(file: Path, *, writes: bool) -> int:
    """Rewrite the renamed keys of a file. Returns the exit status."""
    try:
        text, renamed = migrate(file.read_text(encoding="utf-8"))
        kept = replace_file(file, text) if writes and renamed else None
    except (InvalidValue, OSError, UnicodeDecodeError) as trouble:
        sys.stderr.write(f"hearth: {file}: {trouble}\n")
        return 1
    if not writes:
        sys.stdout.write(text)
    old = f" The old file is {kept}." if kept else ""
    sys.stderr.write(f"{renamed} keys renamed.{old} Next: hearth config check {file}\n")
    return 0


def replace_file(file: Path, text: str) -> Path:
    """Replace a file by a rename, so that readers find the old or the new text. Return where the old file is kept.

    A link is followed. Raises `OSError`; the file is unchanged then.
    """
    file = file.resolve(strict=True)
    kept = next(path for number in count() if not os.path.lexists(path := _backup(file, number)))
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("x", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        shutil.copystat(file, draft)
        with suppress(PermissionError):
            status = file.stat()
            os.chown(draft, status.st_uid, status.st_gid)
        shutil.copy2(file, kept)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return kept


def _backup(file: Path, number: int) -> Path:
    """Return a name beside a file: what an earlier call has kept is never overwritten."""
    return file.with_name(f"{file.name}.bak{number or ''}")


def find_config_errors(config: Path, variables: Mapping[str, str]) -> tuple[ConfigError, ...]:
    """Return the faults of a file, and of the policy, certificates and pod list that it names."""
    try:
        settings = check_file(config, variables)
    except InvalidDocument as invalid:
        return invalid.errors
    faults: list[ConfigError] = [*missing_libraries(settings)]
    try:
        load_policy(settings, variables)
    except InvalidDocument as invalid:
        faults.extend(invalid.errors)
    for place, files in (("tls", settings.tls), ("extproc.tls", settings.extproc and settings.extproc.tls)):
        try:
            if files:
                check_certificate(files)
        except InvalidDocument as invalid:
            faults.extend(ConfigError(place, fault.message) for fault in invalid.errors)
    if settings.pod_file is not None:
        faults.extend(_bad_pods(settings.pod_file))
    return tuple(faults)


def _bad_pods(file: Path) -> Iterator[ConfigError]:
    """Yield the faults of a pod list, without which a gateway would start."""
    try:
        parse_pods(file.read_text(encoding="utf-8"))
    except OSError as error:
        yield ConfigError(str(file), error.strerror or "cannot be read")
    except (InvalidValue, UnicodeDecodeError) as wrong:
        yield ConfigError(str(file), str(wrong))
