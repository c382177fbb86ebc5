"""Opens logs, also compressed ones; finds which lines are records of requests, and rejects those of other versions."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path

from msgspec import Struct

from gateway.pipeline.record import REQUEST_EVENT, USAGE_SCHEMA
from tenancy.document import InvalidValue

COMPRESSED: dict[str, Callable[[Path], BufferedIOBase]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
}
"""How to open a compressed file, by the end of its name."""


def open_log(path: Path) -> BufferedIOBase:
    """Open a log for reading lines, also a compressed one. Raises OSError, also later where it is damaged."""
    opened = COMPRESSED.get(path.suffix)
    return path.open("rb") if opened is None else opened(path)


class LineHeader(Struct):
    """The fields by which a line shows what it is."""

    schema: int | None = None
    """Of usage records."""
    event: str | None = None
    """Of the gateway's own log."""
    request_id: str | None = None


def is_record(header: LineHeader, place: str) -> bool:
    """Return whether a line is a usage record, or a line of the request log. `place` names the line.

    Raises `InvalidValue` for a record of another schema version: its fields have other names or units.
    """
    if header.event is not None:
        return header.event == REQUEST_EVENT
    if header.schema == USAGE_SCHEMA:
        return True
    if header.schema is None and header.request_id is None:
        return False
    version = 1 if header.schema is None else header.schema
    raise InvalidValue(f"{place}: usage record of schema {version}; this version of Hearth reads schema {USAGE_SCHEMA}")
