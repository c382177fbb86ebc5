"""The route log tells what routing can be played again from, and nothing a prompt could be tested against."""

from pathlib import Path

import msgspec
import pytest

from gateway.observe.route_log import RouteRecorder, shared_key
from gateway.pipeline.record import Outcome
from routing.blocks import cut_prompt
from routing.decision.placement import AttemptReceipt
from routing.request import Api, Request, Usage
from tests.gateway.samples import an_outcome

KEY = bytes(range(32))

USAGE = Usage(300, 20, 160)


def outcome(text: bytes, *, session: str | None = "s-1", usage: Usage | None = USAGE) -> Outcome:
    attempt = AttemptReceipt("http://pod:8000", "ok", (), 2, 310, 176, 160, 0.5, 0.4)
    return an_outcome(
        request=Request("r", Api.CHAT, "qwen", cut_prompt(text, 7), session=session),
        at_s=1_000.5,
        tenant="acme",
        usage=usage,
        attempts=(attempt,),
        ttft_s=0.4,
        duration_s=2.0,
        decode_s=1.6,
    )


def reported(recorder: RouteRecorder, text: bytes, session: str | None = "s-1") -> dict[str, object]:
    line: dict[str, object] = msgspec.json.decode(recorder(outcome(text, session=session)))
    return line


def test_equal_beginnings_are_reported_and_nothing_of_what_they_were() -> None:
    """Digests agree as far as the prompts do; neither text, session, tenant nor the router's own hashes stand there."""
    recorder = RouteRecorder(KEY)
    first, second = b"a" * 300 + b"b" * 300, b"a" * 300 + b"c" * 300
    one, other = reported(recorder, first), reported(recorder, second)
    # 12 characters of base64 are 9 bytes: the first two blocks of 8 bytes stand in the first 21 of them.
    assert str(one["blocks"])[:21] == str(other["blocks"])[:21]
    assert one["blocks"] != other["blocks"]
    line = recorder(outcome(first))
    assert b"s-1" not in line
    assert b"acme" not in line
    for block in cut_prompt(first, 7).blocks:
        assert block.to_bytes(8, "little").hex().encode() not in line
        assert str(block).encode() not in line


def test_another_key_makes_other_digests() -> None:
    """Who has the log and guesses the prompt still has not the key."""
    one, other = reported(RouteRecorder(KEY), b"x" * 500), reported(RouteRecorder(bytes(32)), b"x" * 500)
    assert one["blocks"] != other["blocks"]
    assert one["session"] != other["session"]
    assert one["run"] != other["run"]


def test_what_was_not_answered_leaves_no_line() -> None:
    """Without an engine's counts there is nothing to play again."""
    assert RouteRecorder(KEY)(outcome(b"x", usage=None)) == b""


@pytest.mark.parametrize("session", [None, "s"])
def test_sizes_and_times_are_those_of_the_outcome(session: str | None) -> None:
    """In tokens as the engine counts, arrival in Unix time."""
    line = reported(RouteRecorder(KEY), b"x" * 1200, session=session)
    assert line["schema"] == 2
    assert (line["input_tokens"], line["output_tokens"], line["cached_input_tokens"]) == (300, 20, 160)
    assert (line["engine"], line["prompt_bytes"], line["model"]) == ("http://pod:8000", 1200, "qwen")
    assert (line["session"] is None) == (session is None)


def test_the_processes_of_a_host_share_one_key(tmp_path: Path) -> None:
    """The first draws it, for its owner only; alone everybody draws their own."""
    assert shared_key(tmp_path) == shared_key(tmp_path)
    assert len(shared_key(None)) == len(shared_key(tmp_path)) == 32
    assert shared_key(None) != shared_key(None)
    assert [path.name for path in tmp_path.iterdir()] == ["routes.key"]
