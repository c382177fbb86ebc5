"""Carries a client's request to pods, over HTTP: what a pod is told, and what is done when its connection fails."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gateway.cascades.judge import Judge
from gateway.cascades.logprobs import Trim
from gateway.http.client_request import Asked
from gateway.http.request_headers import LONGEST_TRACE
from gateway.http.response_writer import Reply
from gateway.limits.meter import Tab
from gateway.pipeline.attempt import Leg, LegEnd, Order, Prefilled
from gateway.pipeline.resume_blocker import Bar
from gateway.relay.prefill_attempt import ask_prefill
from gateway.relay.relay import Placed, Relay
from gateway.relay.replay_attempt import ask_recall, unprepared
from gateway.relay.retry_buffer import Keeping
from gateway.relay.stall_watch import vigil_over
from gateway.relay.token_limiter import Watch
from gateway.relay.upstream_pool import Address, Pool, PoolIsFull
from gateway.resume.continuation import Rest, rest_of
from gateway.resume.splice import UNLIKE
from routing.decision.placement import Placement
from routing.pods import Engine
from routing.reading import with_fields
from routing.reading.rewriting import capped, prefill_body
from routing.rejection import Refused
from routing.request import Api, Request

TakesPriority = Callable[[str], bool]
"""Whether the pod at a URL schedules by priority."""

WITH_PRIORITY = frozenset(set(Api) - {Api.MESSAGES, Api.TOKENIZE, Api.DETOKENIZE})
"""vLLM 0.32 has no such field in Anthropic's messages; a header says it there, which older ones do not know."""

PodKeys = Callable[[str], str | None]
"""Pod URL to the API key it wants, None where it wants none."""

BARRED_BY = {LegEnd.UNWILLING: Bar.REFUSED, LegEnd.DIFFERENT: Bar.DIFFERS}
"""Ends after which a third pod is not asked to go on with an answer: it would end the same."""

DOWNGRADED_HEADER = "x-hearth-downgraded-from"
RUNG_HEADER = "x-hearth-rung"
"""Which model of a ladder has answered."""

MAX_TOKENS_HEADER = "x-hearth-max-tokens"
"""How many tokens the answer may have, where limits allow less than its client."""

Capped = Callable[[bytes], bytes]
"""A body with what limits allow of an answer."""

TRACE_HEADERS = (b"traceparent", b"tracestate")


class HttpCarrier:
    """One request. `body_needed_no_more` is called when no other pod can be asked any more."""

    def __init__(
        self,
        asked: Asked,
        reply: Reply,
        *,
        path: str,
        body: bytes,
        usage_added: bool,
        pool: Pool,
        key_of: PodKeys,
        takes_priority: TakesPriority,
        keeping: Keeping,
        body_needed_no_more: Callable[[], None],
    ) -> None:
        self._asked = asked
        self._reply = reply
        self._path = path
        self._body = body
        self._usage_added = usage_added
        self._pool = pool
        self._key_of = key_of
        self._takes_priority = takes_priority
        self._keeping = keeping
        self._rest: Rest | None = None
        """What is left to be said, where a stream was cut."""
        self._trim: Trim | None = None
        self._body_needed_no_more = body_needed_no_more
        self._attempts = 0
        self._watch: Watch | None = None
        self._capped: Capped = as_it_is
        self._judge: Judge | None = None
        self._relay: Relay | None = None

    def ask_instead(self, body: bytes, model: str) -> None:
        """Send another body from now on: a smaller model answers for `model`, and the client is told."""
        self._body = self._capped(body)
        self._reply.fields += ((DOWNGRADED_HEADER, model),)

    def ask_rung(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send a rung of a ladder its body from now on; the client is told which one has answered."""
        self._body, self._usage_added, self._trim = self._capped(body), usage_added, None
        others = tuple(field for field in self._reply.fields if field[0] != RUNG_HEADER)
        self._reply.fields = (*others, (RUNG_HEADER, model))

    @property
    def body(self) -> bytes:
        """What the pod is sent; nothing once it has begun to answer."""
        return self._body

    async def carry(self, placement: Placed, first_byte_by_s: float) -> Leg:
        url = placement.engine.pod
        self._attempts += 1
        self._keeping.count_in()
        try:
            failed = await self._recall(placement.engine, placement.request, first_byte_by_s)
            if failed is not None:
                return self._cut_again(failed, placement.request)
            relay = await self._ask(placement, first_byte_by_s, fresh=False)
            if relay.was_stale:
                relay = await self._ask(placement, first_byte_by_s, fresh=True)
        except PoolIsFull:
            leg = Leg(LegEnd.BUSY, detail=f"There are too many connections to {url}.")
        except TimeoutError:
            leg = Leg(LegEnd.UNREACHABLE, detail=f"{url} did not take a connection in time.")
        except OSError as error:
            leg = Leg(LegEnd.UNREACHABLE, detail=f"{url} took no connection: {error.strerror or error}.")
        else:
            leg = relay.leg()
            if relay.has_begun and leg.end is not LegEnd.ANSWERED:
                return self._cut(leg, relay)
        finally:
            self._keeping.count_out()
        return leg if self._rest is None or leg.end is LegEnd.ANSWERED else self._cut_again(leg, placement.request)

    def _rest_of(self, relay: Relay) -> Rest | Bar:
        body = self._keeping.body
        if self._keeping.is_off:
            return Bar.OFF
        try:
            said = relay.said()
        except UNLIKE:
            return Bar.PROMPT
        if not body or said is None:
            return Bar.TOO_LONG
        return rest_of(body, said, sequences=relay.placement.request.sequences)

    def _cut(self, leg: Leg, relay: Relay) -> Leg:
        """Its client has seen some of the answer: see whether another pod can be asked for the rest."""
        request, rest = relay.placement.request, self._rest_of(relay)
        if isinstance(rest, Bar):
            return replace(leg, begun=True, barred=rest)
        self._rest, self._body, self._path = rest, rest.asking.body, rest.path
        return self._cut_again(replace(leg, begun=True), request)

    def _cut_again(self, leg: Leg, request: Request) -> Leg:
        """Nobody has gone on: the rest is still what it was."""
        barred = BARRED_BY.get(leg.end)
        if barred is not None:
            return replace(leg, begun=True, barred=barred)
        return replace(leg, begun=True, rest=request)

    async def _recall(self, engine: Engine, request: Request, by_s: float) -> Leg | None:
        """Have the rest known in tokens, where it has to be; any pod of the model may tell. A leg where none does."""
        rest = self._rest
        recall = rest.asking.recall if rest is not None else None
        if rest is None or recall is None:
            return None

        def words(path: str, body: bytes, mark: str) -> list[bytes]:
            return self._words(engine, request, body, f"{self._engine_id}{mark}", path=path)

        recalled = await ask_recall(self._pool, engine.pod, recall, words, by_s)
        if isinstance(recalled, Leg):
            return recalled
        self._rest = rest = rest.recalled(recalled)
        self._body = rest.asking.body
        return None

    async def prefill(self, placement: Placement, order: Order, by_s: float) -> Prefilled:
        side = placement.prefill
        assert side is not None  # noqa: S101 - the spine asks for a prefill leg of pairs only
        failed = await self._recall(side.engine, placement.request, by_s)
        if failed is not None:
            return unprepared(failed)
        fields = self._kv_fields(order.fields)
        body = prefill_body(placement.request.api, self._body, fields, ends_by_length=order.ends_by_length)
        question = self._words(side.engine, placement.request, body, order.request_id)
        return await ask_prefill(self._pool, side.engine.pod, question, by_s)

    def open_tab(self, tab: Tab) -> None:
        self._reply.fields += tab.fields()
        if tab.max_tokens is not None:
            self._capped = cap_of(tab)
            self._body = self._capped(self._body)
            self._reply.fields += ((MAX_TOKENS_HEADER, str(tab.max_tokens)),)
        if tab.is_watched:
            self._watch = Watch(self._reply, tab)

    def judged_by(self, judge: Judge | None) -> None:
        self._judge = judge
        if judge is not None:
            self._trim = judge.trim

    def refuse(self, refusal: Refused) -> None:
        self._reply.refuse(refusal)

    async def _ask(self, placement: Placed, first_byte_by_s: float, *, fresh: bool) -> Relay:
        url = placement.engine.pod
        line = (None if fresh else self._pool.lease_idle(url)) or await self._pool.connect(url)
        relay = Relay(
            self._reply,
            placement,
            self._path,
            loop=self._pool.loop,
            withholds_usage=self._usage_added,
            kept_bytes=self._keeping.answer_bytes,
            begun=self._begun,
            judge=self._judge,
            rest=self._rest,
            trim=self._trim,
        )
        self._relay = relay
        if self._watch is not None:
            self._watch.relay = relay
        # Not kept in a local: it holds the body, and this frame lives as long as the stream.
        vigil = vigil_over(self._pool.lateness, placement, self._pool.loop.time())
        line.ask(relay, self._question(placement), first_byte_by_s, vigil)
        try:
            await relay.ended
        except BaseException:
            line.abort()  # The client has gone.
            raise
        finally:
            self._relay = None
            if self._watch is not None:
                self._watch.relay = None
        return relay

    def _begun(self) -> None:
        relay = self._relay
        if relay is not None and relay.is_stream:
            self._keeping.keep(self._body)
        self._body = b""
        self._body_needed_no_more()

    def _question(self, placement: Placed) -> list[bytes]:
        body, handover = self._body, placement.handover
        fields = self._kv_fields(handover.fields if handover is not None else b"")
        if fields:
            body = with_fields(body, b'"kv_transfer_params":%b' % fields)
        request_id = self._engine_id if handover is None else handover.request_id
        return self._words(placement.engine, placement.request, body, request_id)

    def _kv_fields(self, own: bytes) -> bytes:
        """`kv_transfer_params`: what a pair is told, and a prompt that is token ids."""
        ids = self._rest.asking.prompt_ids if self._rest is not None else ()
        if not ids:
            return own
        told = b'{"prompt_token_ids":%b}' % msgspec.json.encode(ids)
        return with_fields(told, own.strip()[1:-1]) if len(own.strip()) > 2 else told

    def _words(self, engine: Engine, request: Request, body: bytes, request_id: str, *, path: str = "") -> list[bytes]:
        address = self._pool.address(engine.pod)
        # Said only where it is heeded: elsewhere it may be an error. Higher goes first here, lower there.
        priority = -request.priority if request.priority and self._takes_priority(engine.pod) else 0
        if priority and request.api in WITH_PRIORITY:
            body = with_fields(body, b'"priority":%d' % priority)
        head = question_head(
            self._asked.method,
            path or self._path,
            address,
            request_id=request_id,
            key=self._key_of(engine.pod),
            rank=engine.rank,
            asked=self._asked,
            length=len(body),
            priority=priority if request.api is Api.MESSAGES else 0,
        )
        return [head, body]

    @property
    def _engine_id(self) -> str:
        """Ours, never the client's: engines match KV by it, and two clients may send the same."""
        request_id = self._reply.request_id
        return request_id if self._attempts == 1 else f"{request_id}-{self._attempts}"


def as_it_is(body: bytes) -> bytes:
    """Where limits allow what the client does."""
    return body


def cap_of(tab: Tab) -> Capped:
    """Lowers what a body allows of an answer to what its limits do."""
    api, most = tab.request.api, tab.max_tokens
    return as_it_is if most is None else lambda body: capped(api, body, most)


def question_head(
    method: str,
    path: str,
    address: Address,
    *,
    request_id: str,
    key: str | None,
    rank: int | None,
    asked: Asked,
    length: int,
    priority: int = 0,
) -> bytes:
    """All that a pod is told beside the body. Of the client's headers only its trace gets through."""
    head = (
        f"{method} {address.base}{path} HTTP/1.1\r\nhost: {address.authority}\r\n"
        f"x-request-id: {request_id}\r\naccept: application/json, text/event-stream\r\n"
    )
    if length:
        head += f"content-type: application/json\r\ncontent-length: {length}\r\n"
    elif method == "POST":
        head += "content-length: 0\r\n"
    if key is not None:
        head += f"authorization: Bearer {key}\r\n"
    if rank is not None:
        head += f"x-data-parallel-rank: {rank}\r\n"
    if priority:
        head += f"x-vllm-priority: {priority}\r\n"
    for name in TRACE_HEADERS:
        value = asked.headers.get(name)
        if value and len(value) <= LONGEST_TRACE:
            head += f"{name.decode()}: {value.decode('latin-1')}\r\n"
    return f"{head}\r\n".encode("latin-1")
