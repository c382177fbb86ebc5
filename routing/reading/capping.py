"""Lowers what a body that was read before allows an answer to have, in the words of its API."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from routing.reading.bodies import BODIES
from routing.reading.rewriting import TOP_LEVEL, with_fields
from routing.request import Api

NUMBER = msgspec.json.Decoder(int | None)


def capped(api: Api, body: bytes, most: int) -> bytes:
    """Return a body by which no answer has more than `most` tokens. What allows less is left as it is."""
    names = BODIES[api].LIMITED_BY
    if not names:
        return body
    if b"\\u00" not in body and not any(b'"%b"' % name.encode() in body for name in names):
        return with_fields(body, b'"%b":%d' % (names[0].encode(), most))
    fields = TOP_LEVEL.decode(body)
    given = {name: NUMBER.decode(fields[name]) for name in names if name in fields}
    over = [name for name, limit in given.items() if limit is not None and limit > most]
    if all(limit is None for limit in given.values()):
        over = [names[0]]
    for name in over:
        fields[name] = Raw(b"%d" % most)
    return msgspec.json.encode(fields) if over else body
