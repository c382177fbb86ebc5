"""Pairs of a prefill and a decode engine, scored with single engines as candidates of one decision, in seconds.

A pair's seconds are those of its prefill side (queue, own cold work, what that costs others there), the hand-over (KV
bytes of what the decode engine does not hold, over the link), and those of its decode side as if there were next to no
prefill: what pairing buys is the interference spared there. Where both sides are warm nothing is computed and nothing
moves. All scorers speak on both sides, so that the one choice among all candidates weighs like against like.

Linear in engines, not in pairs: of each circle (`routing.partners`) only the best prefill engine can be a decode
engine's best partner there. Reads no clock; charges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add

from msgspec.structs import replace

from routing.ballot import Scored
from routing.candidates import Candidates
from routing.connectors.registry import CONNECTORS
from routing.connectors.shape import Connector
from routing.fleet import Fleet
from routing.kv_bytes import USUAL_KV_BYTES
from routing.links import FIXED_S, Link, Transfers, bytes_per_s
from routing.partners import Partners, find_partners
from routing.pods import Engine
from routing.prefill_side import Transfer
from routing.request import Request
from routing.roster import Roster
from routing.view import Match, View
from routing.widening import Score, Weighed, widened

Weigh = Callable[[Request, Roster, float], tuple[Candidates, Scored]]
"""Candidates of a roster as single engines, and their scores."""


class Pairing:
    """One per router: what it knows of partners and links."""

    def __init__(self, fleet: Fleet) -> None:
        self.transfers = Transfers()
        self.connectors: tuple[Connector, ...] = CONNECTORS
        self.kv_bytes: dict[str, float] = {}
        """By model, bytes of KV per token, as configured: before what pods say of themselves."""
        self._fleet = fleet
        self._partners: dict[tuple[str, frozenset[str] | None], Partners] = {}
        self._version = -1

    def partners(self, model: str, regions: frozenset[str] | None) -> Partners:
        """Who may pair for a model that the fleet knows."""
        fleet = self._fleet
        if fleet.version != self._version:
            self._partners.clear()
            self._version = fleet.version
        found = self._partners.get((model, regions))
        if found is None:
            decode, prefill = fleet.roster(model, regions), fleet.prefill_roster(model, regions)
            found = self._partners[model, regions] = find_partners(fleet, decode, prefill, self.connectors)
        return found

    def widen(
        self,
        request: Request,
        avoid: frozenset[str],
        view: View,
        weigh: Weigh,
        score: Score,
    ) -> View:
        """Put the pairs behind the single engines of a view."""
        singles = view.candidates
        partners = self.partners(request.model, request.regions)
        roster = partners.prefill
        if request.pods is not None:
            avoid |= {engine.pod for engine in roster.engines} - request.pods
        if avoid:
            roster = roster.without(avoid)
        if not roster.engines or not any(partners.decoding.get(engine.slot) for engine in singles.engines):
            return view
        # A prefill leg makes one token that nobody reads, and belongs to no session: that goes to the decode engine.
        leg = replace(request, max_tokens=1, session=None)
        prefill, costs = weigh(leg, roster, singles.now_s)
        weighed = Weighed(singles, view.scored, prefill, costs)
        matched = self._match(request, partners, weighed)
        return widened(request, weighed, matched, score) if matched else view

    def _match(self, request: Request, partners: Partners, weighed: Weighed) -> list[tuple[int, Match]]:
        """(Position of a decode engine, its best partner) for all that have one."""
        singles, prefill = weighed.singles, weighed.prefill
        totals = self._distrusted(prefill.engines, weighed.costs.totals, singles.now_s)
        best = _best_of_circles(partners, prefill.engines, totals)
        found = []
        for place, engine in enumerate(singles.engines):
            circles = partners.decoding.get(engine.slot)
            if not circles:
                continue
            tokens = max(0.0, prefill.prompt_tokens - singles.warm_tokens[place])
            match: Match | None = None
            least_s = float("inf")
            for circle in circles:
                at = _of_another_pod(best[circle.number], prefill.engines, engine)
                if at is None or (match is not None and match.at == at):
                    continue
                # A nearer circle's best may be another's best too: its link is the nearest they have.
                again_s = singles.own_s[place]
                transfer = self._transfer(request, partners, prefill.engines[at], engine, circle.link, tokens, again_s)
                seconds = totals[at] + transfer.seconds
                if seconds < least_s:
                    match, least_s = Match(at, transfer), seconds
            if match is not None:
                found.append((place, match))
        return found

    def _distrusted(self, engines: Sequence[Engine], totals: Sequence[float], now_s: float) -> Sequence[float]:
        if not self.transfers.has_distrust:
            return totals
        held = (self.transfers.distrust_s(engine.slot, now_s) for engine in engines)
        return list(map(add, totals, held))

    def _transfer(
        self,
        request: Request,
        partners: Partners,
        prefill: Engine,
        decode: Engine,
        link: Link,
        tokens: float,
        again_s: float,
    ) -> Transfer:
        connector = partners.connectors[prefill.slot]
        own, other = partners.facts[prefill.slot], partners.facts[decode.slot]
        told = own.kv_bytes_per_token or other.kv_bytes_per_token or USUAL_KV_BYTES
        each = self.kv_bytes.get(request.model) or told
        speed = bytes_per_s(link, own, other)
        prior_s = FIXED_S + tokens * each / speed
        name = connector.terms.names[0]
        seconds = self.transfers.seconds(link, name, prior_s)
        bound_s = self.transfers.bound_s(link, name, prior_s, again_s)
        return Transfer(connector, link, tokens, prior_s, seconds, bound_s)


def _best_of_circles(
    partners: Partners, engines: Sequence[Engine], totals: Sequence[float]
) -> list[tuple[int, int | None] | None]:
    """By circle, the positions of its two best prefill engines, of different pods: one of them may be the decode
    engine's own.
    """
    best: list[tuple[int, int | None] | None] = [None] * partners.circles
    for at in sorted(range(len(engines)), key=totals.__getitem__):
        for number in partners.prefilling.get(engines[at].slot, ()):
            held = best[number]
            if held is None:
                best[number] = at, None
            elif held[1] is None and engines[held[0]].pod != engines[at].pod:
                best[number] = held[0], at
    return best


def _of_another_pod(held: tuple[int, int | None] | None, engines: Sequence[Engine], decode: Engine) -> int | None:
    if held is None:
        return None
    return held[1] if engines[held[0]].pod == decode.pod else held[0]
