"""Pairs of a prefill and a decode engine, scored with single engines as candidates of one decision, in seconds.

A pair's seconds are those of its prefill side (queue, own cold work, interference there), the KV transfer (bytes that
the decode engine does not hold, over the link), and those of its decode side with next to no prefill: what pairing buys
is the interference spared there. Where both sides hold the prefix nothing is computed and nothing moves. All scorers
run on both sides, so that the one choice is consistent. Pairs follow the single engines in the same
columns.

Linear in engines, not in pairs: of each topology domain (`routing.pairing.partners`) only the best prefill engine can
be a decode engine's best partner there. Reads no clock; charges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add

from msgspec import Struct
from msgspec.structs import replace

from routing.candidates import Candidates, ScoreTable
from routing.connectors.registry import CONNECTORS
from routing.connectors.shape import Connector
from routing.eligible import EligibleEngines, PairingFallback
from routing.fleet import Fleet
from routing.kv_bytes import DEFAULT_KV_BYTES
from routing.pairing.links import FIXED_S, Link, TransferCosts, bytes_per_s
from routing.pairing.partners import Partners, find_partners
from routing.pairing.prefill_side import PredictedTransfer
from routing.pods import Engine
from routing.request import Request


class PartnerMatch(Struct, frozen=True, gc=False):
    """A decode engine's best partner: its position among the prefill candidates, and what the hand-over takes."""

    at: int
    transfer: PredictedTransfer


class CandidatePairs(Struct, frozen=True, gc=False):
    """The pairs of one decision: positions from `first` on map to `matches`, in order."""

    first: int
    prefill: Candidates
    matches: Sequence[PartnerMatch]
    singles: Sequence[int]
    """By match, the position of the decode engine as a single candidate."""
    decode: Sequence[Engine]
    """By match."""


class ScoredOptions(Struct, frozen=True, gc=False):
    """All that may serve one request now."""

    candidates: Candidates
    scored: ScoreTable
    pairs: CandidatePairs | None = None
    fallback: PairingFallback | None = None
    """Why the single engines do what they are not there for."""


STEPS_TO_JOIN = 1.5
"""A decode engine is in the middle of a step when KV comes, and the first token takes one more."""

ScoreFn = Callable[[Request, Candidates], ScoreTable]


@dataclass(frozen=True, slots=True)
class ScoredSides:
    """Both sides of a decision, each scored by itself."""

    singles: Candidates
    scored: ScoreTable
    prefill: Candidates
    costs: ScoreTable


def with_pairs(
    request: Request,
    weighed: ScoredSides,
    matched: Sequence[tuple[int, PartnerMatch]],
    score: ScoreFn,
) -> ScoredOptions:
    """Singles and pairs in one list."""
    singles, prefill = weighed.singles, weighed.prefill
    places = [position for position, _ in matched]
    matches = [match for _, match in matched]
    decode = _decode_sides(singles, prefill, places, matches)
    scored_decode = score(request, decode)
    columns = _pair_columns(decode, prefill, matches)
    candidates_of_both = replace(
        singles,
        **{name: [*getattr(singles, name), *column] for name, column in columns.items()},
        burden_s=[*singles.own_s, *repeat(0.0, len(places))],
        prefillers=[*repeat(None, len(singles.engines)), *(prefill.engines[match.at] for match in matches)],
    )
    waits = [match.transfer.seconds for match in matches]
    scored = _joined(weighed, scored_decode, matches, waits)
    joined = [
        replace(match, transfer=replace(match.transfer, step_s=ahead_s + step_s))
        for match, ahead_s, step_s in zip(matches, decode.ahead_s, decode.prefill_overhead_s, strict=True)
    ]
    pairs = CandidatePairs(len(singles.engines), prefill, joined, places, decode.engines)
    return ScoredOptions(candidates_of_both, scored, pairs)


def _decode_sides(
    singles: Candidates, prefill: Candidates, places: Sequence[int], matches: Sequence[PartnerMatch]
) -> Candidates:
    """Decode engines as they are when the KV comes: nothing to compute, and less queued than now."""
    here = _Columns(singles, places)
    steps = [
        STEPS_TO_JOIN * (base_s + each_s * running)
        for base_s, each_s, running in zip(
            here("step_base_s"),
            here("step_per_sequence_s"),
            here("in_step" if singles.in_step else "running"),
            strict=True,
        )
    ]
    later = [
        prefill.prefill_overhead_s[match.at] + prefill.ahead_s[match.at] + prefill.own_s[match.at] for match in matches
    ]
    nothing = [0.0] * len(places)
    at = {position: number for number, position in enumerate(places)}
    return replace(
        singles,
        **{
            name: here(name)
            for name in ("engines", "warm_tokens", "running", "kv_tokens", "kv_capacity", *DECODE_COLUMNS)
        },
        prefill_work=nothing,
        own_s=nothing,
        ahead_s=[max(0.0, ahead_s - by_s) for ahead_s, by_s in zip(here("ahead_s"), later, strict=True)],
        prefill_overhead_s=steps,
        open_steps=(),
        session_at=None if singles.session_at is None else at.get(singles.session_at),
        holds_adapter=here("holds_adapter") if singles.holds_adapter else (),
        prompts=here("prompts") if singles.prompts else (),
        spill_ranks=here("spill_ranks") if singles.spill_ranks else (),
        distances_s=here("distances_s") if singles.distances_s else (),
        prefill_shares=here("prefill_shares"),
        stalls_s=here("stalls_s") if singles.stalls_s else (),
        **{name: here(name) for name in GROUP_COLUMNS if getattr(singles, name)},
        waited_s=0.0,
    )


DECODE_COLUMNS = (
    *("seconds_per_token", "step_base_s", "step_per_sequence_s", "residence_s", "last_turn", "ready_since_s"),
)
"""The state of a decode engine that does not depend on the request."""


OPTIONAL_COLUMNS = ("holds_adapter", "prompts", "spill_ranks", "distances_s", "prefill_shares", "stalls_s")
"""Empty where they say nothing."""

GROUP_COLUMNS = ("lockstep_s", "stalled", "slowed", "in_step")
"""What engines that step together cost each other; empty where none do."""


class _Columns:
    """Columns of some positions."""

    def __init__(self, candidates: Candidates, places: Sequence[int]) -> None:
        self._candidates = candidates
        self._places = places

    def __call__(self, name: str) -> list[float]:
        column = getattr(self._candidates, name)
        return [column[position] for position in self._places]


def _pair_columns(
    decode: Candidates, prefill: Candidates, matches: Sequence[PartnerMatch]
) -> dict[str, Sequence[object]]:
    """A pair's columns: room and steps of its decode engine, work and queue of its prefill engine."""
    at = [match.at for match in matches]
    took = [
        prefill.prefill_overhead_s[match.at] + match.transfer.seconds + ahead_s + step_s
        for match, ahead_s, step_s in zip(matches, decode.ahead_s, decode.prefill_overhead_s, strict=True)
    ]
    theirs: dict[str, Sequence[object]] = {
        name: [getattr(prefill, name)[position] for position in at]
        for name in ("warm_tokens", "prefill_work", "own_s", "ahead_s")
    }
    ours: dict[str, Sequence[object]] = {
        name: getattr(decode, name) for name in ("engines", "running", "kv_tokens", "kv_capacity", *DECODE_COLUMNS)
    }
    unpaired = {name: getattr(decode, name) for name in (*OPTIONAL_COLUMNS, *GROUP_COLUMNS) if getattr(decode, name)}
    return {**ours, **theirs, **unpaired, "prefill_overhead_s": took}


def _joined(
    weighed: ScoredSides, scored_decode: ScoreTable, matches: Sequence[PartnerMatch], waits: Sequence[float]
) -> ScoreTable:
    """One table of what all scorers said: of singles, and of both sides of pairs together."""
    scored, costs = weighed.scored, weighed.costs
    singles = len(scored.totals)
    alone, here, there = (dict(zip(each.names, each.terms, strict=True)) for each in (scored, scored_decode, costs))
    names = tuple(dict.fromkeys((*scored.names, *scored_decode.names, *costs.names)))
    nothing = [0.0] * singles
    terms: list[Sequence[float]] = []
    for name in names:
        pair = list(here.get(name, repeat(0.0, len(matches))))
        if (side := there.get(name)) is not None:
            pair = [seconds + side[match.at] for seconds, match in zip(pair, matches, strict=True)]
        terms.append([*alone.get(name, nothing), *pair])
    totals = [
        *scored.totals,
        *(
            own + costs.totals[match.at] + wait
            for own, match, wait in zip(scored_decode.totals, matches, waits, strict=True)
        ),
    ]
    return ScoreTable((*names, "transfer"), (*terms, [*nothing, *waits]), totals)


ScoreEnginesFn = Callable[[Request, EligibleEngines, float], tuple[Candidates, ScoreTable]]
"""Candidates of a roster as single engines, and their scores."""


class Pairing:
    """One per router: what it knows of partners and links."""

    def __init__(self, fleet: Fleet) -> None:
        self.transfers = TransferCosts()
        self.connectors: tuple[Connector, ...] = CONNECTORS
        self.kv_bytes: dict[str, float] = {}
        """By model, bytes of KV per token, as configured: before what pods say of themselves."""
        self._fleet = fleet
        self._partners: dict[tuple[str, frozenset[str] | None], Partners] = {}
        self._version = -1

    def partners(self, model: str, regions: frozenset[str] | None) -> Partners:
        """The engines that may pair for a model that the fleet knows."""
        fleet = self._fleet
        if fleet.version != self._version:
            self._partners.clear()
            self._version = fleet.version
        found = self._partners.get((model, regions))
        if found is None:
            decode, prefill = fleet.eligible(model, regions), fleet.eligible_prefill(model, regions)
            found = self._partners[model, regions] = find_partners(fleet, decode, prefill, self.connectors)
        return found

    def add_pairs(
        self,
        request: Request,
        avoid: frozenset[str],
        view: ScoredOptions,
        weigh: ScoreEnginesFn,
        score: ScoreFn,
    ) -> ScoredOptions:
        """Put the pairs behind the single engines of a view."""
        singles = view.candidates
        partners = self.partners(request.model, request.regions)
        eligible = partners.prefill
        if request.pods is not None:
            avoid |= {engine.pod for engine in eligible.engines} - request.pods
        if avoid:
            eligible = eligible.excluding(avoid)
        if not eligible.engines or not any(partners.decoding.get(engine.slot) for engine in singles.engines):
            return view
        # A prefill leg makes one token that is discarded, and belongs to no session: that goes to the decode engine.
        prefill_request = replace(request, max_tokens=1, session=None)
        prefill, costs = weigh(prefill_request, eligible, singles.now_s)
        weighed = ScoredSides(singles, view.scored, prefill, costs)
        matched = self._match(request, partners, weighed)
        return with_pairs(request, weighed, matched, score) if matched else view

    def _match(self, request: Request, partners: Partners, weighed: ScoredSides) -> list[tuple[int, PartnerMatch]]:
        """(Position of a decode engine, its best partner) for all that have one."""
        singles, prefill = weighed.singles, weighed.prefill
        totals = self._distrusted(prefill.engines, weighed.costs.totals, singles.now_s)
        best, under_way = _best_of_circles(partners, prefill.engines, totals), self.transfers.under_way
        found = []
        for position, engine in enumerate(singles.engines):
            circles = partners.decoding.get(engine.slot)
            if not circles:
                continue
            tokens = max(0.0, prefill.prompt_tokens - singles.warm_tokens[position])
            match: PartnerMatch | None = None
            min_s = float("inf")
            for circle in circles:
                at = _of_another_pod(best[circle.number], prefill.engines, engine)
                if at is None or (match is not None and match.at == at):
                    continue
                # A nearer circle's best may be another's best too: its link is the nearest they have.
                again_s = singles.own_s[position]
                transfer = self._transfer(request, partners, prefill.engines[at], engine, circle.link, tokens, again_s)
                if under_way:
                    ready_s = prefill.prefill_overhead_s[at] + prefill.ahead_s[at] + prefill.own_s[at]
                    transfer = transfer.behind(under_way.wait_s(prefill.engines[at].slot, engine.slot, ready_s))
                seconds = totals[at] + transfer.seconds
                if seconds < min_s:
                    match, min_s = PartnerMatch(at, transfer), seconds
            if match is not None:
                found.append((position, match))
        return found

    def _distrusted(self, engines: Sequence[Engine], totals: Sequence[float], now_s: float) -> Sequence[float]:
        if not self.transfers.has_penalties:
            return totals
        held = (self.transfers.penalty_s(engine.slot, now_s) for engine in engines)
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
    ) -> PredictedTransfer:
        connector = partners.connectors[prefill.slot]
        own, other = partners.facts[prefill.slot], partners.facts[decode.slot]
        reported_bytes = own.kv_bytes_per_token or other.kv_bytes_per_token or DEFAULT_KV_BYTES
        each = self.kv_bytes.get(request.model) or reported_bytes
        speed = bytes_per_s(link, own, other)
        prior_s = FIXED_S + tokens * each / speed
        name = connector.terms.names[0]
        seconds = self.transfers.seconds(link, name, prior_s)
        bound_s = self.transfers.timeout_s(link, name, prior_s, again_s)
        return PredictedTransfer(connector, link, tokens, prior_s, seconds, bound_s)


def _best_of_circles(
    partners: Partners, engines: Sequence[Engine], totals: Sequence[float]
) -> list[tuple[int, int | None] | None]:
    """By circle, the positions of its two best prefill engines, of different pods: one of them may be the decode
    engine's own.
    """
    best: list[tuple[int, int | None] | None] = [None] * partners.domain_count
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
