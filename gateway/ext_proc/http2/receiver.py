"""Header blocks to fields: HPACK, with the blocks that change nothing remembered.

Envoy opens every stream with the same few fields. Once they stand in the dynamic table each block is the same bytes:
a handful of indices, and a path written out, which needs no second look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpack import Decoder, HPACKError

from gateway.ext_proc.http2.fields import request_fault, trailers_fault
from gateway.ext_proc.http2.frames import Broken, Fault

REMEMBERED = 64
REMEMBERED_BYTES = 256
"""Of one block: those of an honest Envoy are about fifty bytes long."""

Fields = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A header block that was read: its fields (of one given twice the last), and why it is malformed, if it is."""

    fields: Fields
    count: int
    """Of fields as they were sent, repeated ones included."""
    request_fault: str
    """Why it cannot open a stream; empty where it can."""
    trailers_fault: str
    """Why it cannot end one; empty where it can."""


class BlockReader:
    """One per connection: its dynamic table is shared by all streams."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, HeaderBlock] = {}

    def read(self, block: bytes) -> HeaderBlock:
        """Read a block. Raises `Broken` where it cannot be decoded."""
        found = self._known.get(block)
        if found is not None:
            return found
        front, most = self._table()
        try:
            told = [(_raw(name), _raw(value)) for name, value in self._decoder.decode(block, raw=True)]
        except HPACKError as error:
            raise Broken(Fault.COMPRESSION, f"a header block cannot be read: {error}") from None
        read = HeaderBlock(dict(told), len(told), request_fault(told), trailers_fault(told))
        front_now, most_now = self._table()
        if front_now is not front or most_now != most:
            self._known.clear()  # What an index means has changed.
        elif len(self._known) < REMEMBERED and len(block) <= REMEMBERED_BYTES:
            self._known[block] = read
        return read

    def _table(self) -> tuple[object, int]:
        """What tells one state of the table from the next: each entry that comes is a new object at its front."""
        table = self._decoder.header_table
        return table.dynamic_entries[0] if table.dynamic_entries else None, table.maxsize


def _raw(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode()
