"""The sections `limits`, `timeouts`, `retries` and `stall_detection`: bounds on sizes, counts, waits and attempts.

Values of the last two are `routing.retries.RetryTerms` and `routing.stall_detection.StallBounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from routing.retries import RetryTerms
from routing.stall_detection import StallBounds
from tenancy.document import DocumentTable, integer, not_negative, read_fields
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FRACTION, FieldSpec, ValueKind


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what the traffic port accepts, in bytes and counts."""

    max_body_bytes: int = 32 << 20
    """Maximum size of a request body. A million tokens of text is 4 MB; images as data URLs make more."""
    max_total_body_bytes: int = 1 << 30
    """Maximum size of all request bodies held at one time; beyond it new requests are rejected."""
    max_header_bytes: int = 64 << 10
    """Maximum size of the head of a request."""
    max_headers: int = 128
    """Maximum number of headers of a request."""
    max_url_bytes: int = 8 << 10
    """Maximum size of the request line."""
    max_connections: int = 20_000
    """Maximum number of client connections."""
    max_pipelined_requests: int = 16
    """Requests read ahead of the current one on a connection; reading stops beyond it."""
    high_water_bytes: int = 64 << 10
    """Bytes unsent to a slow client at which its pod is paused."""
    max_recorded_response_bytes: int = 256 << 10
    """Maximum response bytes kept per request: for the prefix index, and to resume a cut stream."""
    max_replay_body_bytes: int = 256 << 10
    """Maximum request body of a stream that can be resumed."""
    max_total_replay_body_bytes: int = 256 << 20
    """Maximum size of all request bodies kept for resumption; streams beyond it cannot be resumed."""

    def per_process(self, processes: int) -> Limits:
        """Return the limits of one of `processes` processes, so that all together keep to these.

        The kernel distributes connections evenly enough. One body must fit into every share.
        """
        return replace(
            self,
            max_total_body_bytes=max(self.max_body_bytes, self.max_total_body_bytes // processes),
            max_total_replay_body_bytes=self.max_total_replay_body_bytes // processes,
            max_connections=-(-self.max_connections // processes),
        )


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds on waiting, in seconds."""

    request_header_s: float = 10.0
    """From a connection's first byte of a request to the end of its head."""
    request_body_s: float = 60.0
    """From the head to the end of the body."""
    downstream_idle_s: float = 75.0
    """Maximum idle time of a client connection: above the 60 s of common load balancers."""
    upstream_connect_s: float = 2.0
    """To open a connection to a pod; then another pod is tried. It takes milliseconds in a data centre."""
    first_byte_s: float = 600.0
    """From arrival to the first byte of the response, retries included."""
    scale_from_zero_s: float = 0.0
    """Maximum wait of a request while no pod of its model is available, for models scaled from zero."""
    upstream_read_s: float = 300.0
    """Between bytes of a response, whatever was learned of its engine."""
    resume_s: float = 30.0
    """From a stream's cut until another pod must continue it."""
    downstream_write_s: float = 60.0
    """Maximum time in which a client may read none of the bytes that wait for it."""
    upstream_idle_s: float = 4.0
    """Maximum idle time of a reused pod connection: below the 5 s after which uvicorn closes its side."""
    startup_discovery_s: float = 5.0
    """Maximum time at start to list pods and probe them before requests are accepted: earlier, requests for models that
    exist would be rejected. Afterwards, maximum wait of a request while no pod has reported its models."""
    lame_duck_s: float = 0.0
    """After SIGTERM, how long the gateway serves on while unready, so that load balancers can notice."""
    drain_s: float = 30.0
    """Maximum wait after that for running requests."""


NON_NEGATIVE_COUNT = ValueKind(
    lambda value: integer(not_negative(value)),
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^([0-9]+|\$\{.*\})$"}]},
)


RETRY_FIELDS: Mapping[str, FieldSpec] = {
    "max_attempts": FieldSpec(
        "max_attempts", COUNT, "Maximum healthy pods that may fail one request before its first byte."
    ),
    "max_resumes": FieldSpec("max_resumes", NON_NEGATIVE_COUNT, "Maximum resumes of one stream; 0: none."),
    "budget_ratio": FieldSpec("budget_ratio", FRACTION, "Maximum long-run ratio of retries and resumes to requests."),
    "budget_burst": FieldSpec("budget_burst", NON_NEGATIVE_COUNT, "Maximum retries and resumes in one burst."),
}
"""Keys of `retries`; the fields are those of `RetryTerms`."""


STALL_DETECTION_FIELDS: Mapping[str, str] = {
    "factor": "A silence counts as a stall beyond this multiple of the longest recent silence.",
    "engine_min_s": "Minimum seconds of silence before a completely silent engine counts as hung.",
    "stream_min_s": "Minimum seconds of silence before one stream counts as stalled while others continue.",
    "buffered_output_grace_s": "Maximum seconds for which an engine may buffer tool calls or hidden reasoning.",
    "initial_s": "Assumed longest silence of an engine without observations, in seconds.",
    "half_life_s": "Seconds of observation after which a past silence counts half.",
}
"""Descriptions of the keys of `stall_detection`, which are the fields of `StallBounds`."""


def read_retries(root: DocumentTable) -> RetryTerms:
    """Read `retries`; absent keys keep their defaults."""
    defaults, given = RetryTerms(), root.table("retries")
    if given is None:
        return defaults
    found = {
        word.field: given.get(name, word.kind.parse, getattr(defaults, word.field))
        for name, word in RETRY_FIELDS.items()
    }
    given.close()
    return replace(defaults, **found)


def read_stall_detection(root: DocumentTable) -> StallBounds:
    """Read `stall_detection`; absent keys keep their defaults."""
    given = root.table("stall_detection")
    return StallBounds() if given is None else read_fields(given, StallBounds(), above_zero=True)


def retries_schema() -> Schema:
    """Return the schema of `retries`."""
    return table({name: described(word.kind.schema, word.help) for name, word in RETRY_FIELDS.items()})


def stall_detection_schema() -> Schema:
    """Return the schema of `stall_detection`."""
    return table({name: described(ABOVE_ZERO.schema, words) for name, words in STALL_DETECTION_FIELDS.items()})
