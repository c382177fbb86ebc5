"""What all exchanges of one gateway share: the desk, the bounds, who is under way, and where observers find them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from gateway.config.port_limits import Limits, Timeouts
from gateway.ext_proc.access_log import AccessLog
from gateway.ext_proc.listener import Crowd
from gateway.ext_proc.modes import USUAL
from gateway.ext_proc.observer import Observed
from gateway.ext_proc.response_writer import EnvoyReply
from gateway.ext_proc.transport import Means
from gateway.http.client_request import Budget
from gateway.http.dispatcher import Desk
from routing.fleet import Fleet
from routing.rejection import Refused


@dataclass(frozen=True, slots=True)
class Rules:
    """What all exchanges go by."""

    limits: Limits
    timeouts: Timeouts
    queue_s: float
    """How long a request may wait for an engine."""
    sample: float
    """The share of unseen answers to look at."""
    trusts: Callable[[str], bool]
    """Whether who sends from an address may speak for others."""


class UnderWay(Observed, Protocol):
    """An exchange, as its office keeps it."""

    reply: EnvoyReply | None

    def cut(self, refusal: Refused) -> None:
        """End now, with a word where one can still be said."""
        ...


class Office:
    """One per gateway process."""

    def __init__(
        self,
        desk: Desk,
        fleet: Fleet,
        means: Means,
        *,
        rules: Rules,
        budget: Budget,
        kept_headers: set[bytes],
        pass_over: Callable[[str], object],
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        """`pass_over` is told of a pod that Envoy had to do without."""
        self.desk = desk
        self.fleet = fleet
        self.means = means
        self.budget = budget
        self.rules = rules
        self.note_passed_over = pass_over
        self.clock = clock
        self.crowd = crowd = Crowd(rules.limits.max_connections)
        self.log = AccessLog(lambda: crowd.now > 0)
        self.usual_modes = USUAL
        self._draw = draw
        self._kept_headers = kept_headers
        self._kept: Mapping[str, bytes] = {}
        self._exchanges: dict[str, Observed] = {}
        self._under_way: set[UnderWay] = set()
        self._id_prefix = secrets.token_hex(12)
        self._id_count = count()

    def __repr__(self) -> str:
        return f"<Office with {self.crowd.now} exchanges>"

    def new_id(self) -> str:
        return f"{self._id_prefix}{next(self._id_count):08x}"

    def kept(self) -> Mapping[str, bytes]:
        """The headers that mean something to us, by their names as Envoy writes them."""
        if len(self._kept) != len(self._kept_headers):
            self._kept = {name.decode("latin-1"): name for name in self._kept_headers}
        return self._kept

    def wants_sample(self) -> bool:
        """Whether to look at an answer that we would not see."""
        return self.rules.sample > 0 and self._draw() < self.rules.sample

    def enter(self, exchange: UnderWay) -> None:
        self.crowd.now += 1
        self._under_way.add(exchange)

    def leave(self, exchange: UnderWay) -> None:
        if exchange in self._under_way:
            self._under_way.discard(exchange)
            self.crowd.now -= 1
            if exchange.reply is not None:
                self._exchanges.pop(exchange.reply.request_id, None)

    def under_way(self) -> tuple[UnderWay, ...]:
        return tuple(self._under_way)

    def expect_observer(self, exchange: UnderWay) -> None:
        """Its request goes to a pod: a filter behind the one that picks may show its answer."""
        if exchange.reply is not None:
            self._exchanges[exchange.reply.request_id] = exchange

    def find(self, request_id: str) -> Observed | None:
        """The exchange whose request was sent to a pod under this id."""
        return self._exchanges.get(request_id)
