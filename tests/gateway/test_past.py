"""Requests that were are read from what a gateway writes."""

import json
from pathlib import Path

from gateway.past import read_past
from tenancy.telling.trial import Past


def test_a_record_is_a_request_that_began_before(tmp_path: Path) -> None:
    """Lines come when requests end, so they are put in the order in which requests came."""
    log = tmp_path / "usage.jsonl"
    long = {"timestamp": "2026-11-20T10:00:10Z", "tenant": "a", "model": "m", "duration_ms": 9000, "user": "ann"}
    short = {"timestamp": "2026-11-20T10:00:05Z", "tenant": "b", "model": "m", "input_tokens": 7, "cached_tokens": None}
    log.write_text("\n".join(map(json.dumps, (short, long, {"message": "listening", "tenant": None}))))
    assert read_past(log) == [
        Past(1_795_168_801.0, "a", "m", user="ann", duration_s=9.0),
        Past(1_795_168_805.0, "b", "m", input_tokens=7),
    ]
