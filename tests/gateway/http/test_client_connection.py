"""A client's connection: order, keeping alive, time limits, back pressure, leaving."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.limits import Limits, Timeouts
from routing.rejection import Reason
from tests.gateway.http.rig import CHAT_PATH, QUICK, a_chat, a_rig, request_bytes
from tests.gateway.http.scripted import Step, until
from tests.gateway.http.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    answer_bytes,
    chat_answer,
    chat_event,
    chat_stream,
    chunk,
    chunked,
)

GOOD = [answer_bytes(chat_answer())]


async def test_pipelined_requests_are_answered_in_order() -> None:
    """A slow answer is not overtaken by those asked after it, be they ours or a pod's."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([go_on, answer_bytes({"first": 1})], [answer_bytes({"second": 2})])
        client = await rig.client()
        requested = request_bytes(CHAT_PATH, a_chat())
        await client.send(requested + request_bytes("/health") + requested + request_bytes("/nowhere"))
        await until(lambda: rig.pod.questions)
        go_on.set()
        assert (await client.answer()).json() == {"first": 1}
        assert (await client.answer()).status == 200
        assert (await client.answer()).json() == {"second": 2}
        assert (await client.answer()).status == 404


@pytest.mark.parametrize("count", [2, 40, 400])
async def test_reading_ahead_is_bounded_and_loses_nothing(count: int) -> None:
    """However many requests come at once, few are taken in ahead of the answers, and all are answered."""
    go_on = asyncio.Event()
    async with a_rig(limits=Limits(max_pipelined_requests=4)) as rig:
        rig.pod.plays([go_on, *GOOD], GOOD)
        client = await rig.client()
        requested = request_bytes(CHAT_PATH, a_chat())
        sending = asyncio.create_task(client.send(requested * count))
        await until(lambda: rig.pod.questions)
        await client.send(b"")
        assert rig.front.body_budget.held_bytes <= 10 * 8192
        go_on.set()
        for _ in range(count):
            assert (await client.answer()).status == 200
        await sending


@pytest.mark.parametrize("count", [1000])
async def test_small_requests_in_one_read_are_all_answered(count: int) -> None:
    """What we answer ourselves needs no turn of the loop."""
    async with a_rig() as rig:
        client = await rig.client()
        await client.send(request_bytes("/health") * count)
        for _ in range(count):
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("size", [7_000, 8_192, 8_300, 100_000, 300_000])
async def test_what_follows_a_large_body_in_the_same_read_is_a_request_of_its_own(size: int) -> None:
    """A body is read in one go, and not a byte further; what comes next is read as a head."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD, GOOD)
        client = await rig.client()
        first, second = a_chat(user="a" * size), a_chat(user="b" * (300_000 - size))
        await client.send(
            request_bytes("/health") + b"".join(request_bytes(CHAT_PATH, body) for body in (first, second))
        )
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
        assert [question.json() for question in rig.pod.questions] == [first, second]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_request_may_come_in_pieces(size: int) -> None:
    """However a request is cut, it is the same request."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        raw = request_bytes(CHAT_PATH, a_chat())
        for start in range(0, len(raw), size):
            await client.send(raw[start : start + size])
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200
        assert rig.pod.questions[0].json() == a_chat()


async def test_a_chunked_request_body_is_put_together() -> None:
    """The pod gets it by its length, trailers and chunk extensions are nobody's business."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        head = request_bytes(CHAT_PATH, method="POST", content_type="application/json", transfer_encoding="chunked")
        body = request_bytes("/", a_chat()).partition(b"\r\n\r\n")[2]
        chunks = chunk(body[:5]) + b"3;ext=1\r\n" + body[5:8] + b"\r\n" + chunk(body[8:])
        await client.send(head + chunks + b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await client.answer()).status == 200
        assert rig.pod.questions[0].json() == a_chat()
        assert "x-trailer" not in rig.pod.questions[0].headers
        assert (await client.ask("/health")).status == 200


async def test_nothing_of_the_clients_head_but_its_trace_reaches_the_pod() -> None:
    """Authorization, cookies, forwarding and internal headers stay with us."""
    async with a_rig(key="ours", ranks=(3,)) as rig:
        rig.pod.plays(GOOD)
        await rig.ask(
            CHAT_PATH + "?debug=1",
            a_chat(),
            authorization="Bearer theirs",
            cookie="a=b",
            x_request_id="theirs",
            x_data_parallel_rank="7",
            x_forwarded_for="1.2.3.4",
            x_hearth_tenant="root",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            tracestate="a=1",
            te="trailers",
            accept_encoding="gzip",
        )
        question = rig.pod.questions[0]
        assert question.path == CHAT_PATH
        assert question.headers == {
            "host": rig.pod.url.removeprefix("http://"),
            "x-request-id": rig.outcomes[0].id,
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "content-length": str(len(question.body)),
            "authorization": "Bearer ours",
            "x-data-parallel-rank": "3",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate": "a=1",
        }
    trace = rig.outcomes[0].trace
    assert trace is not None
    assert (trace.trace_id, trace.parent_id) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.mark.parametrize(
    ("sent", "echoed"), [("a-b_c:1", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("é", False)]
)
async def test_a_sane_request_id_is_echoed(sent: str, echoed: bool) -> None:
    """What may stand in a log comes back; anything else is replaced by ours."""
    async with a_rig() as rig:
        answer = await rig.ask("/health", x_request_id=sent)
        assert (answer.headers["x-request-id"] == sent) is echoed


async def test_every_answer_about_the_fleet_names_its_receipt() -> None:
    """A request that was refused before it was read leaves one too; what concerns no pod names none."""
    async with a_rig() as rig:
        rejected = await rig.ask(CHAT_PATH, b"{")
        assert rejected.status == 400
        assert [outcome.id for outcome in rig.outcomes] == [rejected.headers["x-hearth-request-id"]]
        assert rig.outcomes[0].reason is Reason.BAD_JSON
        assert "x-hearth-request-id" not in (await rig.ask("/health")).headers
        assert "x-hearth-request-id" not in (await rig.ask("/nowhere")).headers


async def test_connection_close_is_honoured() -> None:
    """The answer says so too, and the connection ends with it."""
    async with a_rig() as rig:
        client = await rig.client()
        answer = await client.ask("/health", connection="close")
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


async def test_http_1_0_is_served() -> None:
    """Without keep-alive unless asked for; a stream is ended by the connection."""
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunked(chat_stream("Hi"))])
        client = await rig.client()
        await client.send(b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        answer = await client.answer()
        assert answer.headers["connection"] == "keep-alive"
        raw = request_bytes(CHAT_PATH, a_chat(stream=True), connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
        await client.send(raw)
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert answer.body == chat_event("Hi", "stop") + DONE
        assert await client.is_closed()


async def test_head_is_answered_without_a_body() -> None:
    """The length is told, the body is not sent, and the connection goes on."""
    async with a_rig() as rig:
        client = await rig.client()
        await client.send(request_bytes("/v1/models", method="HEAD"))
        answer = await client.answer(has_body=False)
        assert int(answer.headers["content-length"]) > 0
        assert (await client.ask("/health")).status == 200


async def test_a_body_is_requested_where_the_client_waits_to_be_called() -> None:
    """Expect: 100-continue is answered before the body comes."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        head, _, body = request_bytes(CHAT_PATH, a_chat(), expect="100-continue").partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert (await client.head())[0] == 100
        await client.send(body)
        assert (await client.answer()).status == 200


async def test_a_body_that_is_not_wanted_is_not_requested() -> None:
    """Who will be refused anyway is told at once."""
    async with a_rig() as rig:
        client = await rig.client()
        head = request_bytes("/nowhere", a_chat(), expect="100-continue").partition(b"\r\n\r\n")[0]
        await client.send(head + b"\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 404
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("body", [None, a_chat()])
async def test_an_offer_to_upgrade_is_declined_silently(body: object) -> None:
    """JDK clients offer h2c with every request; the request is served, its body included, and the connection kept."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        path = CHAT_PATH if body else "/health"
        raw = request_bytes(path, body, connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAMAAABk")
        await client.send(raw * 3)
        for _ in range(3):
            assert (await client.answer()).status == 200
        assert [question.json() for question in rig.pod.questions] == ([a_chat()] * 3 if body else [])


async def test_an_upgrade_with_a_chunked_body_in_pieces() -> None:
    """The framing of the body is found also where the parser gave up on it."""
    async with a_rig() as rig:
        rig.pod.plays(GOOD)
        client = await rig.client()
        head = request_bytes(
            CHAT_PATH,
            method="POST",
            content_type="application/json",
            transfer_encoding="chunked",
            connection="Upgrade",
            upgrade="h2c",
        )
        body = request_bytes("/", a_chat()).partition(b"\r\n\r\n")[2]
        raw = head + chunk(body) + LAST_CHUNK
        for start in range(0, len(raw), 11):
            await client.send(raw[start : start + 11])
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200
        assert rig.pod.questions[0].json() == a_chat()


async def test_idle_connections_are_closed() -> None:
    """New ones that never speak and kept ones that fall silent."""
    async with a_rig(timeouts=QUICK) as rig:
        silent, kept = await rig.client(), await rig.client()
        assert (await kept.ask("/health")).status == 200
        assert await silent.is_closed()
        assert await kept.is_closed()


@pytest.mark.parametrize(
    "start", [b"GE", b"GET /health HTTP/1.1\r\nhost: a\r\nx-slow", request_bytes(CHAT_PATH, a_chat())[:-5]]
)
async def test_a_slow_request_is_given_up(start: bytes) -> None:
    """Slowloris: what does not come in time is refused with 408, and the connection closed."""
    async with a_rig(timeouts=QUICK) as rig:
        client = await rig.client()
        await client.send(start)
        answer = await client.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await client.is_closed()
        assert not rig.pod.questions


async def test_dripping_bytes_do_not_extend_the_time() -> None:
    """The bound is on the whole head, not on the gap between bytes."""
    async with a_rig(timeouts=QUICK, limits=Limits(max_headers=1 << 30, max_header_bytes=1 << 30)) as rig:
        client = await rig.client()
        await client.send(b"GET /health HTTP/1.1\r\n")
        answering = asyncio.create_task(client.answer())
        while not answering.done():
            client.writer.write(b"a: b\r\n")
            await asyncio.sleep(0)
        assert answering.result().status == 408


async def test_a_client_that_stops_reading_pauses_its_pod_and_is_cut_in_the_end() -> None:
    """What waits for it is bounded, and after a while it is taken for gone."""
    piece = chunk(chat_event("x" * 10_000))
    async with a_rig(timeouts=Timeouts(downstream_write_s=0.3), limits=Limits(high_water_bytes=1 << 16)) as rig:
        sent = 0

        def count(_: object) -> None:
            nonlocal sent
            sent += len(piece)

        steps: list[Step] = [piece, count]
        rig.pod.plays([STREAM_HEAD, *steps * 4000, asyncio.Event()])
        client = await rig.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        await until(lambda: rig.outcomes)
        assert sent < 4000 * len(piece)
        assert rig.outcomes[0].status == 499
        await until(lambda: not rig.pod.writers)


async def test_a_client_that_reads_slowly_gets_everything() -> None:
    """Pausing loses nothing: each time it has read, its pod goes on."""
    events = [chat_event("x" * 10_000) for _ in range(500)]
    async with a_rig(limits=Limits(high_water_bytes=1 << 14)) as rig:
        rig.pod.plays([STREAM_HEAD, *map(chunk, events), chunk(DONE) + LAST_CHUNK])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True)))
        answer = await client.answer()
        assert answer.is_whole
        assert answer.body == b"".join(events) + DONE
        assert rig.front.pool.idle_count == 1


async def test_a_client_that_calls_without_reading_is_not_served_on() -> None:
    """Answers that nobody takes do not pile up: the next request waits until the last answer has gone."""
    async with a_rig(limits=Limits(high_water_bytes=1 << 10), timeouts=Timeouts(downstream_write_s=0.3)) as rig:
        rig.pod.plays([answer_bytes({"choices": "x" * 100_000})])
        client = await rig.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        sending = asyncio.create_task(client.send(request_bytes(CHAT_PATH, a_chat()) * 2000))
        await until(lambda: not rig.front.open_connections)
        assert len(rig.pod.questions) < 500
        await asyncio.gather(sending, return_exceptions=True)


async def test_too_many_connections_are_informed() -> None:
    """The one too many gets an answer, not silence; those that stand are not touched."""
    async with a_rig(limits=Limits(max_connections=2)) as rig:
        first, second = await rig.client(), await rig.client()
        assert (await first.ask("/health")).status == 200
        assert (await second.ask("/health")).status == 200
        third = await rig.client()
        answer = await third.answer()
        assert (answer.status, answer.code) == (429, "slow_down")
        assert await third.is_closed()
        assert (await first.ask("/health")).status == 200


async def test_bodies_beyond_the_budget_are_slowed_down() -> None:
    """All bodies together are bounded; when one has gone there is room again."""
    body = a_chat(user="x" * 600)
    async with a_rig(limits=Limits(max_total_body_bytes=1000)) as rig:
        go_on = asyncio.Event()
        rig.pod.plays([go_on, *GOOD], GOOD)
        first, second = await rig.client(), await rig.client()
        await first.send(request_bytes(CHAT_PATH, body))
        await until(lambda: rig.pod.questions)
        rejected = await second.ask(CHAT_PATH, body)
        assert (rejected.status, rejected.code) == (429, "slow_down")
        assert rejected.headers["retry-after"] == "1"
        go_on.set()
        assert (await first.answer()).status == 200
        assert (await rig.ask(CHAT_PATH, body)).status == 200


async def test_a_body_is_dropped_when_the_answer_has_started() -> None:
    """No other pod can be asked any more: a long prompt does not wait for its long answer to end."""
    go_on = asyncio.Event()
    async with a_rig() as rig:
        rig.pod.plays([STREAM_HEAD + chunk(chat_event("Hi")), go_on, chunk(DONE) + LAST_CHUNK])
        client = await rig.client()
        await client.send(request_bytes(CHAT_PATH, a_chat(stream=True, user="x" * 100_000)))
        assert (await client.head())[0] == 200
        assert rig.front.body_budget.held_bytes == 0
        go_on.set()
        while await client.chunk():
            pass
