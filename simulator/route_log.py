"""A gateway's route log as a trace: which prompts began alike, how long they were, and where they went.

The log tells prompts in blocks of bytes that grow with depth; a trace has blocks of one size in tokens. Each of those
is known by the byte block that covers its end, so what is shared in the log is shared here, to less than a byte block.
"""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from routing.blocks import BLOCK_ENDS
from simulator.traces import Arrival, Runs, Trace, gather_runs, make_trace

BLOCK_TOKENS = 64
"""As fine as the first blocks of the log are, about."""

DIGEST_BYTES = 8


ROUTE_SCHEMA = 2
"""Version of the lines that are read (`gateway/observe/route_log.py`); lines of version 1 name none."""


class RouteHeader(msgspec.Struct):
    """What shows the version of a line."""

    schema: int = 1


class RouteRow(msgspec.Struct):
    """What is wanted of a line."""

    run: str
    started_at_s: float
    model: str
    input_tokens: int
    output_tokens: int
    prompt_bytes: int
    blocks: str
    engine: str
    session: str | None = None
    ttft_s: float | None = None
    duration_s: float | None = None


def trace_of_routes(name: str, rows: Iterable[RouteRow]) -> Trace:
    """The requests of the model with most requests: others ran on other engines, or as other prompts."""
    every = list(rows)
    counts = Counter(row.model for row in every)
    model = counts.most_common(1)[0][0] if counts else ""
    chosen = [row for row in every if row.model == model]
    tokens = sum(row.input_tokens for row in chosen)
    grid = _Grid(sum(row.prompt_bytes for row in chosen) / max(tokens, 1))
    engines = {engine: number for number, engine in enumerate(sorted({row.engine for row in chosen}))}
    arrivals = [
        Arrival(
            row.started_at_s,
            max(row.input_tokens, 1),
            max(row.output_tokens, 1),
            row.session,
            grid.runs(row),
            engines[row.engine],
        )
        for row in chosen
    ]
    return make_trace(name, arrivals, BLOCK_TOKENS)


class _Grid:
    """Gives equal ids to blocks of tokens behind equal beginnings."""

    def __init__(self, bytes_per_token: float) -> None:
        self._bytes_per_token = bytes_per_token
        self._ids: dict[tuple[str, bytes, int], int] = {}

    def runs(self, row: RouteRow) -> Runs:
        digests = b64decode(row.blocks)
        count = len(digests) // DIGEST_BYTES
        ids = []
        for number, cover in enumerate(self._covers(row.input_tokens // BLOCK_TOKENS)):
            if cover >= count:
                break
            digest = digests[cover * DIGEST_BYTES : (cover + 1) * DIGEST_BYTES]
            ids.append(self._ids.setdefault((row.run, digest, number), len(self._ids)))
        return gather_runs(ids)

    def _covers(self, blocks: int) -> Sequence[int]:
        """Which byte block covers the end of each block of tokens."""
        step = BLOCK_TOKENS * self._bytes_per_token
        return [bisect_left(BLOCK_ENDS, step * number) for number in range(1, blocks + 1)]
