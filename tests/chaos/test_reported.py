"""What logs tell is counted once, however many scenes they go on through."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.reported import read_told

RESUMED = b'{"event": "request_completed", "resumes": 2, "status": 200, "wasted_tokens": 5}\n'
REFUSED = (
    b'{"event": "request_completed", "resumes": 0, "status": 429, "reason": "too_many_parallel_requests",'
    b' "resume_failure": "tool_call"}\n'
)


def test_a_scene_reports_what_came_after_the_last_one(tmp_path: Path) -> None:
    """Lines of the scenes before are in the same log."""
    log = tmp_path / "gateway.log"
    log.write_bytes(RESUMED + REFUSED)
    before = read_told([log])
    assert (before.requests, before.resumed, before.cuts, before.wasted_tokens) == (2, 1, 2, 5)
    log.write_bytes(RESUMED + REFUSED + RESUMED + b'{"message": "requ')
    reported = read_told([log]).since(before)
    assert (reported.requests, reported.resumed, reported.cuts, reported.wasted_tokens) == (1, 1, 2, 5)
    assert not reported.rejected
    assert not reported.not_resumed
