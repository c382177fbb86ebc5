"""Requests that were are read from what a gateway writes."""

import json
from pathlib import Path

import pytest

from gateway.commands.past_requests import read_logged_requests
from tenancy.document import InvalidValue
from tenancy.report.dry_run import LoggedRequest


def test_a_record_is_a_request_that_began_before(tmp_path: Path) -> None:
    """Lines come when requests end, so they are put in the order in which requests came."""
    log = tmp_path / "usage.jsonl"
    begin = {"schema": 2, "model": "m"}
    long = begin | {"timestamp": "2026-11-20T10:00:10Z", "tenant": "a", "duration_s": 9.0, "user": "ann"}
    short = begin | {
        "timestamp": "2026-11-20T10:00:05Z",
        "tenant": "b",
        "input_tokens": 7,
        "cached_input_tokens": None,
    }
    log.write_text("\n".join(map(json.dumps, (short, long, {"event": "listening", "tenant": None}))))
    assert read_logged_requests(log) == [
        LoggedRequest(1_795_168_801.0, "a", "m", user="ann", duration_s=9.0),
        LoggedRequest(1_795_168_805.0, "b", "m", input_tokens=7),
    ]


def test_a_rejected_request_is_known_as_such(tmp_path: Path) -> None:
    """It has an error status and no tokens; a client that left, or an answer that failed with its usage, is none."""
    log = tmp_path / "usage.jsonl"
    line = {"schema": 2, "timestamp": "2026-11-20T10:00:05Z", "tenant": "b", "model": "m"}
    lines = [
        line | {"status": 429, "prompt_bytes": 900, "max_tokens": 50, "stream": False},
        line | {"status": 499},
        line | {"status": 502, "input_tokens": 7},
        line | {"status": 200, "input_tokens": 7, "stream": True},
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    past = read_logged_requests(log)
    assert [each.was_rejected for each in past] == [True, False, False, False]
    assert (past[0].prompt_bytes, past[0].max_tokens, past[0].is_unary) == (900, 50, True)
    assert not past[3].is_unary


@pytest.mark.parametrize(("schema", "version"), [({}, 1), ({"schema": 3}, 3)])
def test_a_record_of_another_schema_is_refused(tmp_path: Path, schema: dict[str, int], version: int) -> None:
    """By its version, with the line's place: its fields have other names and units."""
    log = tmp_path / "usage.jsonl"
    old = {"timestamp": "2026-11-20T10:00:05Z", "request_id": "r", "tenant": "b", "model": "m", "duration_ms": 9000}
    log.write_text(json.dumps({"event": "listening"}) + "\n" + json.dumps(old | schema))
    with pytest.raises(InvalidValue, match=f"usage.jsonl:2: usage record of schema {version}; .* reads schema 2"):
        read_logged_requests(log)
