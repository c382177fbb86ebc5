"""A route log written by the gateway is read as the trace it was made of."""

import gzip
from pathlib import Path

import msgspec
import pytest

from gateway.observe.route_log import RouteRecorder
from routing.blocks import cut_prompt
from routing.decision.placement import AttemptReceipt
from routing.request import Api, Request, Usage
from simulator.command import main
from simulator.prompt_text import block_text
from simulator.trace_formats import TraceFault, load_trace
from simulator.traces import count_runs
from tests.gateway.samples import an_outcome

RECORDER = RouteRecorder(bytes(32))


def line(text: str, at_s: float, *, pod: int, session: str | None = None, model: str = "qwen") -> bytes:
    tokens = len(text) // 4
    attempt = AttemptReceipt(f"http://pod-{pod}:8000", "ok", (), 2, tokens, 0, 0, 0.1, 0.1)
    request = Request("r", Api.CHAT, model, cut_prompt(text.encode(), 1), session=session)
    usage = Usage(tokens, 9, 0)
    times = {"at_s": at_s + 1.0, "ttft_s": 0.1, "duration_s": 1.0, "decode_s": 0.9}
    return RECORDER(an_outcome(request=request, usage=usage, attempts=(attempt,), **times))


def write(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "routes.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    return path


FIRST, SECOND = block_text(1, 3_000), block_text(2, 3_000)


def test_what_was_shared_is_shared_in_the_trace(tmp_path: Path) -> None:
    """A second turn shares its first turn's blocks but for the last bytes; another prompt none; times begin at 0."""
    path = write(
        tmp_path,
        [
            line(FIRST, 100.0, pod=1, session="a"),
            line(FIRST + SECOND, 130.0, pod=0, session="a"),
            line(SECOND, 131.0, pod=0),
        ],
    )
    trace = load_trace(path)
    turn, grown, other = trace.arrivals
    assert [one.at_s for one in trace.arrivals] == pytest.approx([0.0, 30.0, 31.0])
    assert (turn.prompt_tokens, grown.prompt_tokens, turn.output_tokens) == (3_000, 6_000, 9)
    assert turn.session == grown.session != other.session is None
    shared = len(set(turn.blocks) & set(grown.blocks)) * (trace.block_tokens or 0)
    assert 0.9 * 3_000 <= shared <= 3_000
    assert count_runs(turn.runs) * (trace.block_tokens or 0) >= 0.9 * 3_000
    assert not set(turn.blocks) & set(other.blocks)
    assert [one.engine for one in trace.arrivals] == [1, 0, 0]
    assert trace.engines == 2


def test_only_the_model_that_was_used_most_is_played(tmp_path: Path) -> None:
    """Others ran on other engines."""
    rows = [line(FIRST, at, pod=0) for at in (1.0, 2.0)] + [line(SECOND, 3.0, pod=1, model="small")]
    assert len(load_trace(write(tmp_path, rows)).arrivals) == 2


def test_what_would_have_happened_stands_next_to_what_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On as many pods as were recorded; the recorded choice is a row like the others, and here the worst."""
    turns = [
        line(block_text(talk, 2_000 + 400 * turn), 40.0 * turn + talk, pod=(talk + turn) % 2)
        for turn in range(4)
        for talk in range(6)
    ]
    path = write(tmp_path, turns)
    assert main(["--trace", str(path), "--routing", "as-recorded,warm", "--out", str(tmp_path)]) == 0
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    recorded, warm = report["routings"]
    assert report["setup"]["pods"] == 2
    assert recorded["requests_by_pod"] == {"pod-0": 12, "pod-1": 12}
    assert warm["hit_ratio"] > 1.5 * recorded["hit_ratio"]
    assert main(["--trace", str(path), "--compare", "--out", str(tmp_path)]) == 0
    assert "as-recorded" in capsys.readouterr().out


def test_a_line_of_another_schema_is_rejected(tmp_path: Path) -> None:
    """By its version, with the line's place."""
    path = write(tmp_path, [line(FIRST, 1.0, pod=1), line(FIRST, 2.0, pod=1).replace(b'"schema":2,', b"")])
    with pytest.raises(TraceFault, match=r"routes.jsonl.gz:2: route log of schema 1; .* reads schema 2"):
        load_trace(path)
