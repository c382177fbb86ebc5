"""Requests that can be read in two ways, and such as only look like that: bytes, and what must come of them.

Each request asks for a model of its own that is not there, so that its answer, a 404 with the model's name in it, shows
which request it is the answer to. What is hidden in a case asks for `hidden`: nobody may ever be answered that.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN = "hidden"
REFUSED, UNKNOWN, GOES_ON = 400, 404, 100


def body_of(model: str) -> bytes:
    return b'{"model":"%s","messages":[]}' % model.encode()


def head_of(*fields: bytes, target: bytes = b"/v1/chat/completions", method: bytes = b"POST") -> bytes:
    stated = (b"host: hearth", b"content-type: application/json", *fields)
    return method + b" " + target + b" HTTP/1.1\r\n" + b"".join(field + b"\r\n" for field in stated) + b"\r\n"


def post(model: str, *fields: bytes, target: bytes = b"/v1/chat/completions") -> bytes:
    """As a decent client sends it."""
    body = body_of(model)
    return head_of(*fields, b"content-length: %d" % len(body), target=target) + body


def chunked(model: str, *fields: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    body = body_of(model)
    framed = b"%x%b\r\n%b\r\n0\r\n%b\r\n" % (len(body), extension, body, trailers)
    return head_of(b"transfer-encoding: chunked", *fields) + framed


SMUGGLED = post(HIDDEN)
CHUNKED = b"transfer-encoding: chunked"
NO_MORE = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """`statuses`: what is answered, in order, by the gateway alone."""

    raw: bytes
    statuses: tuple[int, ...]
    closes: bool


def ambiguous(raw: bytes) -> Case:
    """Read in no way at all: refused, and nothing behind it is heard."""
    return Case(raw + SMUGGLED, (REFUSED,), closes=True)


def clear(raw: bytes, *statuses: int) -> Case:
    """Only one reading: answered as often as was asked."""
    return Case(raw, statuses, closes=False)


def sized(*fields: bytes, body: bytes = NO_MORE) -> bytes:
    return head_of(*fields) + body


CASES = {
    "length, then chunks": ambiguous(sized(b"content-length: 5", CHUNKED)),
    "chunks, then length": ambiguous(sized(CHUNKED, b"content-length: 5")),
    "length of the smuggled, and chunks": ambiguous(sized(b"content-length: %d" % (5 + len(SMUGGLED)), CHUNKED)),
    "short length, and chunks": ambiguous(sized(b"content-length: 4", CHUNKED, body=b"5c\r\n" + SMUGGLED + NO_MORE)),
    "length nought, and chunks": ambiguous(sized(b"content-length: 0", CHUNKED)),
    "two equal lengths": ambiguous(sized(b"content-length: 5", b"content-length: 5")),
    "two lengths": ambiguous(sized(b"content-length: 5", b"content-length: 0")),
    "two lengths, the second is long": ambiguous(sized(b"content-length: 5", b"content-length: 500")),
    "a list of lengths": ambiguous(sized(b"content-length: 5, 5")),
    "a signed length": ambiguous(sized(b"content-length: +5")),
    "a length with a gap": ambiguous(sized(b"content-length: 5 0")),
    "an empty length": ambiguous(sized(b"content-length:")),
    "a length beyond counting": ambiguous(sized(b"content-length: 18446744073709551621")),
    "a hexadecimal length": ambiguous(sized(b"content-length: 0x5")),
    "unknown coding": ambiguous(sized(b"transfer-encoding: xchunked")),
    "chunked twice": ambiguous(sized(CHUNKED, CHUNKED)),
    "chunked, then plain": ambiguous(sized(b"transfer-encoding: chunked, identity")),
    "plain, then chunked": ambiguous(sized(b"transfer-encoding: identity", CHUNKED)),
    "coding in quotes": ambiguous(sized(b'transfer-encoding: "chunked"')),
    "a tab in the coding's place": ambiguous(sized(b"transfer-encoding: \x0bchunked")),
    "space before the colon of a coding": ambiguous(sized(b"transfer-encoding : chunked")),
    "space before the colon of a length": ambiguous(sized(b"content-length : 5")),
    "folded coding": ambiguous(sized(b"transfer-encoding:\r\n chunked")),
    "folded header": ambiguous(sized(b"x: a\r\n\tb", b"content-length: 5")),
    "first header begins with a space": ambiguous(
        b"POST /v1/chat/completions HTTP/1.1\r\n " + sized(b"content-length: 5").partition(b"\r\n")[2]
    ),
    "a header that ends in a bare line feed": ambiguous(sized(b"x: a\ntransfer-encoding: chunked")),
    "a header that ends in a bare return": ambiguous(sized(b"x: a\rtransfer-encoding: chunked")),
    "a head that ends in bare line feeds": ambiguous(sized(b"content-length: 5").replace(b"\r\n", b"\n")),
    "nought in a name": ambiguous(sized(b"transfer-\x00encoding: chunked", b"content-length: 5")),
    "nought in a value": ambiguous(sized(b"x: a\x00b", b"content-length: 5")),
    "a space in a name": ambiguous(sized(b"transfer encoding: chunked", b"content-length: 5")),
    "a header without a name": ambiguous(sized(b": x", b"content-length: 5")),
    "a header without a colon": ambiguous(sized(b"chunked", b"content-length: 5")),
    "two hosts": ambiguous(sized(b"host: other", b"content-length: 5")),
    "chunks in HTTP/1.0": ambiguous(sized(CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "a chunk size beyond counting": ambiguous(sized(CHUNKED, body=b"f0000000000000003\r\nabc\r\n" + NO_MORE)),
    "a signed chunk size": ambiguous(sized(CHUNKED, body=b"+3\r\nabc\r\n" + NO_MORE)),
    "a negative chunk size": ambiguous(sized(CHUNKED, body=b"-3\r\nabc\r\n" + NO_MORE)),
    "a chunk size with a prefix": ambiguous(sized(CHUNKED, body=b"0x3\r\nabc\r\n" + NO_MORE)),
    "a chunk without its end": ambiguous(sized(CHUNKED, body=b"3\r\nabc" + NO_MORE)),
    "a chunk with other ends": ambiguous(sized(CHUNKED, body=b"3\r\nabcXX" + NO_MORE)),
    "a chunk size that ends in a bare line feed": ambiguous(sized(CHUNKED, body=b"3\nabc\r\n" + NO_MORE)),
    "an extension that hides a line feed": ambiguous(sized(CHUNKED, body=b"3;x\nabc\r\n" + NO_MORE)),
    "an extension that hides a return": ambiguous(sized(CHUNKED, body=b"3;x\rabc\r\n" + NO_MORE)),
    "trailers that would be framing": ambiguous(chunked("one", trailers=b"content-length: 500\r\n")),
    "an upgrade to HTTP/2 by its preface": ambiguous(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a good request, then an ambiguous one": Case(
        post("one") + sized(b"content-length: 5", CHUNKED) + SMUGGLED, (UNKNOWN, REFUSED), closes=True
    ),
    "three at once": clear(post("one") + post("two") + post("three"), UNKNOWN, UNKNOWN, UNKNOWN),
    "an error between two": clear(
        post("one") + post("two", target=b"/nowhere") + post("three"), UNKNOWN, UNKNOWN, UNKNOWN
    ),
    "a body that looks like a request": clear(
        head_of(b"content-length: %d" % len(SMUGGLED)) + SMUGGLED + post("two"), REFUSED, UNKNOWN
    ),
    "a chunk that looks like a request": clear(
        head_of(CHUNKED) + b"%x\r\n%b\r\n" % (len(SMUGGLED), SMUGGLED) + NO_MORE + post("two"), REFUSED, UNKNOWN
    ),
    "a GET with a body": clear(
        head_of(b"content-length: %d" % len(SMUGGLED), target=b"/v1/models/one", method=b"GET")
        + SMUGGLED
        + post("two"),
        UNKNOWN,
        UNKNOWN,
    ),
    "chunks": clear(chunked("one") + post("two"), UNKNOWN, UNKNOWN),
    "chunks with an extension": clear(chunked("one", extension=b';a="b"') + post("two"), UNKNOWN, UNKNOWN),
    "trailers": clear(chunked("one", trailers=b"x-checksum: 5\r\n") + post("two"), UNKNOWN, UNKNOWN),
    "names with underscores": clear(
        post("one", b"transfer_encoding: chunked", b"content_length: 500") + post("two"), UNKNOWN, UNKNOWN
    ),
    "an absolute target": clear(
        post("one", target=b"http://elsewhere.example/v1/chat/completions") + post("two"), UNKNOWN, UNKNOWN
    ),
    "an offer of h2c": clear(
        post("one", b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__")
        + post("two"),
        UNKNOWN,
        UNKNOWN,
    ),
    "an offer of a web socket": clear(
        post("one", b"connection: upgrade", b"upgrade: websocket") + post("two"), UNKNOWN, UNKNOWN
    ),
    "an expectation, and the body at once": clear(
        post("one", b"expect: 100-continue") + post("two"), GOES_ON, UNKNOWN, UNKNOWN
    ),
    "empty lines before a request": clear(b"\r\n\r\n" + post("one") + post("two"), UNKNOWN, UNKNOWN),
}
"""Names say what an attacker would hope to be read differently by two programs."""
