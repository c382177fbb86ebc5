"""What tracing adds to the event loop's work for one request."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.house.trace_request import trace_request

TRACED = "tracing: {endpoint: 'http://127.0.0.1:9', sample_ratio: 0.0}"


def test_a_request_that_is_not_sampled_makes_two_more_calls_with_tracing() -> None:
    """It begins a trace, with its header, and looks whether it is sampled; spans are built elsewhere."""
    without = Counter(asyncio.run(trace_request(None)).calls)
    traced = Counter(asyncio.run(trace_request(None, config=TRACED)).calls)
    added = {name: count for (file, name), count in (traced - without).items() if "trac" in file}
    assert added == {"Tracer.begin": 1, "Tracer.on_outcome": 1}
    assert not any(file.startswith("gateway/tracing") for file, _ in without)
