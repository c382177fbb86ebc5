"""Two answers to one client: whichever is to be its own reaches it whole, and of the other not a byte."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest

from gateway.proxy.carrying.beside import ROOM_BYTES, BesideReply
from gateway.proxy.client.asked import Asked
from gateway.proxy.client.reply import Reply
from gateway.proxy.pods.line import Line
from tests.gateway.ladders.sure import chat_pair, cut_up
from tests.gateway.proxy.scene import Scene, staged
from tests.gateway.proxy.wire import LAST_CHUNK, STREAM_HEAD, answer_bytes, chat_answer, chunk

SCENES = 500


class Pair:
    """A scene whose client has a second answer under way beside the first."""

    def __init__(self) -> None:
        self.first = Scene(withholds_usage=True)
        self.second = Scene(withholds_usage=True)
        self.beside = BesideReply(Asked(), self.first.reply)
        self.second.reply = cast("Reply", self.beside)
        self.second.ask()

    @property
    def client(self) -> bytes:
        return self.first.client.written


def a_stream(word: str, draw: Random) -> tuple[list[bytes], bytes]:
    """The reads of a stream, and what its client is to see."""
    _, plain = chat_pair([f" {word}{number}" for number in range(draw.randint(1, 12))])
    events = [chunk(each) for each in plain]
    return [STREAM_HEAD, *cut_up([*events, LAST_CHUNK], draw)], b"".join(plain)


@pytest.mark.parametrize("wins", [False, True])
def test_one_answer_is_the_clients(*, wins: bool) -> None:
    """However both are cut into reads: the first goes on as if it were alone, or the second from its beginning."""

    def play(seed: int) -> None:
        draw = Random(seed)
        pair = Pair()
        firsts, first = a_stream("first", draw)
        seconds, second = a_stream("second", draw)
        before = draw.randint(0, len(seconds))
        pair.second.feed(seconds[:before])
        assert pair.client == b""
        if not wins:
            pair.first.feed(firsts)
            assert not pair.beside.take_over()
            assert pair.first.heard.body == first, seed
            return
        pair.first.feed(firsts[:1])
        assert pair.beside.take_over()
        assert pair.first.socket.is_aborted
        pair.first.feed(firsts[1:])
        pair.second.feed(seconds[before:])
        assert pair.first.heard.is_whole
        assert pair.first.heard.body == second, seed
        assert pair.first.answered == 1

    def run() -> None:
        for seed in range(SCENES):
            play(seed)

    staged(run)


def test_it_is_begun_when_there_is_something_to_give() -> None:
    """A head says nothing; a first token does, and so does an error that is the client's own."""

    def run() -> None:
        streams = Pair()
        _, plain = chat_pair([" a"])
        streams.second.feed([STREAM_HEAD])
        assert not streams.beside.begun_beside.done()
        streams.second.feed([chunk(plain[0])])
        assert streams.beside.begun_beside.done()
        refuses = Pair()
        refuses.second.feed([answer_bytes({"error": {"message": "no", "code": 400}}, status=400)])
        assert refuses.beside.begun_beside.done()
        assert refuses.beside.take_over()
        assert refuses.first.heard.status == 400

    staged(run)


def test_whole_answers_take_over_too() -> None:
    """With the length that they have."""

    def run() -> None:
        pair = Pair()
        pair.second.feed([answer_bytes(chat_answer("Paris."))])
        assert pair.client == b""
        assert pair.beside.take_over()
        assert pair.first.heard.is_whole
        assert pair.client.endswith(answer_bytes(chat_answer("Paris.")).partition(b"\r\n\r\n")[2])

    staged(run)


def test_what_waits_is_bounded() -> None:
    """A pod that says more than there is room for is paused, and goes on when it has taken over."""

    def run() -> None:
        pair = Pair()
        pauses: list[str] = []

        class Source:
            def pause(self) -> None:
                pauses.append("pause")

            def resume(self) -> None:
                pauses.append("resume")

            def abort(self) -> None:
                pauses.append("abort")

        pair.beside.source = cast("Line", Source())
        pair.beside.begin(200, "text/event-stream", b"data: 1\n\n", length=None, is_stream=True)
        assert pauses == []
        pair.beside.send(b"x" * (ROOM_BYTES + 1))
        assert pauses == ["pause"]
        assert pair.beside.take_over()
        assert pauses == ["pause", "resume"]
        assert pair.first.reply.source is pair.beside.source

    staged(run)


def test_who_has_been_answered_is_taken_over_by_nobody() -> None:
    """Nor is a client that has gone."""

    def run() -> None:
        pair = Pair()
        pair.first.reply.abandon()
        assert not pair.beside.take_over()

    staged(run)
