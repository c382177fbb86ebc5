"""Carries a request by Envoy's hands: tells it where to go, watches what is shown of the answer, says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gateway.ext_proc import names
from gateway.ext_proc.endpoints import endpoint_of
from gateway.ext_proc.modes import Sight
from gateway.http.response_writer import Reply
from gateway.limits.meter import Tab
from gateway.pipeline.attempt import Leg, LegEnd
from gateway.relay.http_transport import (
    DOWNGRADED_HEADER,
    MAX_TOKENS_HEADER,
    RUNG_HEADER,
    WITH_PRIORITY,
    Capped,
    PodKeys,
    TakesPriority,
    as_it_is,
    cap_of,
)
from gateway.relay.relay import Placed, Relay
from gateway.relay.token_limiter import Watch
from routing.decision.placement import Placement
from routing.reading import with_fields
from routing.rejection import Refused
from routing.request import Api


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a request goes, with which headers set, and with which body."""

    endpoints: str
    fields: list[tuple[str, str]]
    body: bytes


class Envoy(Protocol):
    """One request's stream, as its carrier uses it."""

    @property
    def sight(self) -> Sight: ...
    @property
    def events(self) -> int:
        """Of the answer, as far as they were seen."""
        ...

    @property
    def has_heard_answer(self) -> bool: ...

    def send_pick(self, pick: Pick, relay: Relay) -> None: ...


@dataclass(frozen=True, slots=True)
class Means:
    """What all carriers of one gateway need."""

    key_of: PodKeys
    takes_priority: TakesPriority
    kept_bytes: int
    most_endpoints: int = 1


class EnvoyCarrier:
    """One request."""

    def __init__(
        self,
        envoy: Envoy,
        target: bytes,
        reply: Reply,
        means: Means,
        *,
        path: str,
        body: bytes,
        usage_added: bool,
        body_needed_no_more: Callable[[], None],
    ) -> None:
        """`target` is the request's path as Envoy has it; `path` is what the pod is to be asked at."""
        self._envoy = envoy
        self._target = target
        self._reply = reply
        self._means = means
        self._path = path
        self._body = body
        self._usage_added = usage_added
        self._body_needed_no_more = body_needed_no_more
        self._tab: Tab | None = None
        self._capped: Capped = as_it_is
        self._watch: Watch | None = None

    @property
    def body(self) -> bytes:
        """What the pod is sent; nothing once Envoy has it."""
        return self._body

    def ask_instead(self, body: bytes, model: str) -> None:
        """Send another body from now on: a smaller model answers for `model`, and the client is told."""
        self._body = self._capped(body)
        self._reply.fields += ((DOWNGRADED_HEADER, model),)

    def ask_rung(self, body: bytes, model: str, *, usage_added: bool) -> None:
        """Send a rung of a ladder its body from now on; the client is told which one answers."""
        self._body, self._usage_added = self._capped(body), usage_added
        others = tuple(field for field in self._reply.fields if field[0] != RUNG_HEADER)
        self._reply.fields = (*others, (RUNG_HEADER, model))

    def open_tab(self, tab: Tab) -> None:
        self._reply.fields = tab.fields()
        self._tab = tab
        if tab.max_tokens is not None:
            self._capped = cap_of(tab)
            self._body = self._capped(self._body)
            self._reply.fields += ((MAX_TOKENS_HEADER, str(tab.max_tokens)),)
        if tab.is_watched and self._envoy.sight is Sight.FULL:
            self._watch = Watch(self._reply, tab)

    def judged_by(self, judge: object) -> None:
        """A judge has to hold an answer back, and here it passes: such ladders are refused when settings are read."""

    async def prefill(self, placement: object, order: object, by_s: float) -> None:
        """The sidecar beside the decode engine sees to it: it is told the prefill engine in a header."""

    def refuse(self, refusal: Refused) -> None:
        self._reply.refuse(refusal)

    async def carry(self, placement: Placed, first_byte_by_s: float) -> Leg:
        """As `Carrier.carry` says. Envoy has one pod of us and takes no other: no leg may be tried again."""
        loop = asyncio.get_running_loop()
        relay = Relay(
            self._reply,
            placement,
            self._path,
            loop=loop,
            withholds_usage=self._usage_added,
            kept_bytes=self._means.kept_bytes,
            begun=_nothing,
        )
        if self._watch is not None:
            self._watch.relay = relay
        self._envoy.send_pick(self._pick(placement), relay)
        self._body = b""
        self._body_needed_no_more()
        timer = loop.call_at(first_byte_by_s, self._time_is_up, relay)
        try:
            await relay.ended
        finally:
            timer.cancel()
            self._estimate()
            if self._watch is not None:
                self._watch.relay = None
        leg = relay.leg()
        return leg if leg.begun else replace(leg, begun=True)

    def _time_is_up(self, relay: Relay) -> None:
        if not self._envoy.has_heard_answer:
            relay.fail(LegEnd.TIMEOUT, f"{relay.placement.engine.pod} did not answer in time.")

    def _estimate(self) -> None:
        """Of a stream that passed us by: what was seen of it, or what answers usually are."""
        tab = self._tab
        if tab is not None and tab.request.stream and self._envoy.sight is not Sight.FULL:
            tab.passed(self._envoy.events or tab.request.expected_output_tokens)

    def _pick(self, placement: Placed) -> Pick:
        engine, request, body, means = placement.engine, placement.request, self._body, self._means
        fields = [(names.REQUEST_ID, self._reply.request_id)]
        if self._target != self._path.encode("ascii"):
            fields.append((names.PATH, self._path))  # Without its query, as our own proxy asks pods.
        key = means.key_of(engine.pod)
        if key is not None:
            fields.append(("authorization", f"Bearer {key}"))
        if engine.rank is not None:
            fields.append((names.RANK, str(engine.rank)))
        # Said only where it is heeded: elsewhere it may be an error. Higher goes first here, lower there.
        priority = -request.priority if request.priority and means.takes_priority(engine.pod) else 0
        if priority and request.api in WITH_PRIORITY:
            body = with_fields(body, b'"priority":%d' % priority)
        elif priority and request.api is Api.MESSAGES:
            fields.append((names.PRIORITY, str(priority)))
        prefill = getattr(placement, "prefill", None)
        if prefill is not None:
            fields.append((names.PREFILLER, endpoint_of(prefill.engine.pod)))
        return Pick(self._endpoints(placement), fields, body)

    def _endpoints(self, placement: Placed) -> str:
        """The one that was chosen; behind it those that scored next, where a list is understood."""
        first, most = endpoint_of(placement.engine.pod), self._means.most_endpoints
        if most == 1 or not isinstance(placement, Placement):
            return first
        others = dict.fromkeys(endpoint_of(shown.engine.partition("#")[0]) for shown in placement.few())
        return ",".join([first, *(endpoint for endpoint in others if endpoint != first)][:most])


def _nothing() -> None:
    """The body was let go when Envoy had it."""
