"""Header blocks to fields: HPACK, with the blocks that change nothing remembered.

Envoy opens every stream with the same few fields. Once they stand in the dynamic table each block is the same handful
of indices, which needs no second look.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpack import Decoder, HPACKError

from gateway.extproc.http2.frames import Broken, Fault

INDICES = bytes(range(0x81, 0xFF))
"""A field that stands in the table whole, named in one byte: neither the table nor its indices change by it."""

REMEMBERED = 64

Fields = Mapping[bytes, bytes]


class BlockReader:
    """One per connection: its dynamic table is shared by all streams."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, Fields] = {}

    def read(self, block: bytes) -> Fields:
        """The fields of a block; of a field given twice the last. Raises `Broken`."""
        found = self._known.get(block)
        if found is not None:
            return found
        changes = bool(block.strip(INDICES))
        if changes:
            self._known.clear()
        try:
            told: Fields = {_raw(name): _raw(value) for name, value in self._decoder.decode(block, raw=True)}
        except HPACKError as error:
            raise Broken(Fault.COMPRESSION, f"a header block cannot be read: {error}") from None
        if not changes and len(self._known) < REMEMBERED:
            self._known[block] = told
        return told


def _raw(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode()
