"""Opens logs, also compressed ones; finds which lines are records of requests, and rejects those of other versions."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
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


MAX_LINE_BYTES = 16 << 20
"""A log has no longer line; a compressed file of a few kilobytes can."""


class DamagedLog(InvalidValue):
    """A log that cannot be read, or not to its end."""


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log, also of a compressed one. Raises `DamagedLog`, also for a line that is too long."""
    opened = COMPRESSED.get(path.suffix)
    try:
        with path.open("rb") if opened is None else opened(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise DamagedLog(f"{path}: a line has more than {MAX_LINE_BYTES} bytes")
                yield line
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DamagedLog(f"{path}: {getattr(error, 'strerror', None) or error}") from None


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
