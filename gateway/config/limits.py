"""The sections `limits`, `timeouts`, `retries` and `stalls`: bounds on sizes, counts, times and repeated attempts.

The values of `retries` and `stalls` are `routing.retries.RetryTerms` and `routing.lateness.StallBounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from routing.retries import RetryTerms
from routing.stall_detection import StallBounds
from tenancy.document import DocumentTable, not_negative, read_fields, whole
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FRACTION, FieldSpec, ValueKind


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what the traffic port accepts, in bytes and counts."""

    max_body_bytes: int = 32 << 20
    """A million tokens of text is 4 MB; images as data URLs make more."""
    max_bodies_bytes: int = 1 << 30
    """All request bodies held at one time; beyond it new requests are rejected."""
    max_header_bytes: int = 64 << 10
    max_headers: int = 128
    max_url_bytes: int = 8 << 10
    max_connections: int = 20_000
    max_pipelined: int = 16
    """Requests read ahead of the one being answered on a connection; reading stops beyond it."""
    high_water_bytes: int = 64 << 10
    """Bytes unsent to a slow client at which its pod is paused."""
    kept_answer_bytes: int = 256 << 10
    """Answer bytes kept by reference per request, to know what the engine holds afterwards, and what was said by a
    stream that is cut."""
    kept_body_bytes: int = 256 << 10
    """Of one request whose answer streams: a stream that is cut is gone on with only while its request is there."""
    kept_bodies_bytes: int = 256 << 20
    """All of these together; a stream that finds no room goes without."""

    def per_process(self, processes: int) -> Limits:
        """Return the limits of one of `processes` processes, so that all together keep to these.

        The kernel distributes connections evenly enough. One body must fit into every share.
        """
        return replace(
            self,
            max_bodies_bytes=max(self.max_body_bytes, self.max_bodies_bytes // processes),
            kept_bodies_bytes=self.kept_bodies_bytes // processes,
            max_connections=-(-self.max_connections // processes),
        )


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds on waiting, in seconds."""

    header_s: float = 10.0
    """From a connection's first byte of a request to the end of its head."""
    body_s: float = 60.0
    """From the head to the end of the body."""
    idle_s: float = 75.0
    """How long an idle client connection is kept: above the 60 s of common load balancers in front."""
    connect_s: float = 2.0
    """To open a connection to a pod, which is a matter of milliseconds in a data centre; then another is tried."""
    first_byte_s: float = 600.0
    """From arrival to the first byte of the answer, retries included."""
    no_pod_s: float = 0.0
    """How long a request waits where its model's pods are all away, until the first of them comes: scale from zero."""
    stall_s: float = 300.0
    """Between bytes of an answer, whatever was learned of its engine."""
    resume_s: float = 30.0
    """From a stream's cut until another pod must go on with it."""
    client_stall_s: float = 60.0
    """How long a client may stop reading while bytes wait for it."""
    pod_idle_s: float = 4.0
    """How long an idle pod connection is used again: below the 5 s after which uvicorn closes its side."""
    first_look_s: float = 5.0
    """How long a starting gateway lets nobody in until all sources have told their pods and these were looked at:
    before, requests for models that are there would be refused. So long waits a request then, should no pod at all have
    told yet what it serves."""
    lame_duck_s: float = 0.0
    """How long a gateway that was told to stop serves on, unready: until whoever spreads the load has noticed."""
    drain_s: float = 30.0
    """How long a stopping gateway waits then for the requests it has."""


NON_NEGATIVE_COUNT = ValueKind(
    lambda value: whole(not_negative(value)),
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^([0-9]+|\$\{.*\})$"}]},
)


RETRY_FIELDS: Mapping[str, FieldSpec] = {
    "attempts": FieldSpec("attempts", COUNT, "Pods, well till then, that may fail one request before its first byte."),
    "cuts": FieldSpec("cuts", NON_NEGATIVE_COUNT, "How often one stream is gone on with elsewhere; 0: never."),
    "share": FieldSpec("share", FRACTION, "Second attempts for each request, in the long run."),
    "saved": FieldSpec("saved", NON_NEGATIVE_COUNT, "Second attempts that may come at once after a time without."),
}
"""Keys of `retries`; the fields are those of `RetryTerms`."""


STALL_FIELDS: Mapping[str, str] = {
    "times": "A silence may be so many times as long as the longest of late.",
    "least_s": "No engine that falls silent altogether is given up sooner.",
    "least_alone_s": "Nor is one stream among others that flow.",
    "held_s": "For so long may an engine hold back what it makes: calls of tools, hidden thoughts.",
    "first_s": "The longest silence of an engine of which nothing is known yet.",
    "half_s": "Of listening, after which a silence counts for half as long.",
}
"""Descriptions of the keys of `stalls`, which are the fields of `StallBounds`."""


def read_retries(root: DocumentTable) -> RetryTerms:
    """Read `retries`; absent keys keep their defaults."""
    usual, given = RetryTerms(), root.table("retries")
    if given is None:
        return usual
    found = {
        word.field: given.get(name, word.kind.parse, getattr(usual, word.field)) for name, word in RETRY_FIELDS.items()
    }
    given.close()
    return replace(usual, **found)


def read_stalls(root: DocumentTable) -> StallBounds:
    """Read `stalls`; absent keys keep their defaults."""
    given = root.table("stalls")
    return StallBounds() if given is None else read_fields(given, StallBounds(), above_zero=True)


def retries_schema() -> Schema:
    """Return the schema of `retries`."""
    return table({name: described(word.kind.schema, word.help) for name, word in RETRY_FIELDS.items()})


def stalls_schema() -> Schema:
    """Return the schema of `stalls`."""
    return table({name: described(ABOVE_ZERO.schema, words) for name, words in STALL_FIELDS.items()})
