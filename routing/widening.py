"""Puts pairs behind single engines, in the columns that all candidates share and in the table of their scores.

Who pairs with whom is decided before (`routing.pairing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

from msgspec.structs import replace

from routing.ballot import Scored
from routing.candidates import Candidates
from routing.request import Request
from routing.view import Match, Pairs, View

STEPS_TO_JOIN = 1.5
"""A decode engine is in the middle of a step when KV comes, and the first token takes one more."""

Score = Callable[[Request, Candidates], Scored]


@dataclass(frozen=True, slots=True)
class Weighed:
    """Both sides of a decision, each scored by itself."""

    singles: Candidates
    scored: Scored
    prefill: Candidates
    costs: Scored


def widened(
    request: Request,
    weighed: Weighed,
    matched: Sequence[tuple[int, Match]],
    score: Score,
) -> View:
    """Singles and pairs in one list."""
    singles, prefill = weighed.singles, weighed.prefill
    places = [place for place, _ in matched]
    matches = [match for _, match in matched]
    decode = _decode_sides(singles, prefill, places, matches)
    said = score(request, decode)
    columns = _pair_columns(decode, prefill, matches)
    whole = replace(
        singles,
        **{name: [*getattr(singles, name), *column] for name, column in columns.items()},
        burden_s=[*singles.own_s, *repeat(0.0, len(places))],
        prefillers=[*repeat(None, len(singles.engines)), *(prefill.engines[match.at] for match in matches)],
    )
    waits = [match.transfer.seconds for match in matches]
    scored = _joined(weighed, said, matches, waits)
    joined = [
        replace(match, transfer=replace(match.transfer, step_s=ahead_s + step_s))
        for match, ahead_s, step_s in zip(matches, decode.ahead_s, decode.prefill_overhead_s, strict=True)
    ]
    pairs = Pairs(len(singles.engines), prefill, joined, places, decode.engines)
    return View(whole, scored, pairs)


def _decode_sides(
    singles: Candidates, prefill: Candidates, places: Sequence[int], matches: Sequence[Match]
) -> Candidates:
    """Decode engines as they are when the KV comes: nothing to compute, and less queued than now."""
    here = _Columns(singles, places)
    steps = [
        STEPS_TO_JOIN * (base_s + each_s * running)
        for base_s, each_s, running in zip(
            here("step_base_s"), here("step_per_sequence_s"), here("running"), strict=True
        )
    ]
    later = [
        prefill.prefill_overhead_s[match.at] + prefill.ahead_s[match.at] + prefill.own_s[match.at] for match in matches
    ]
    nothing = [0.0] * len(places)
    at = {place: number for number, place in enumerate(places)}
    return replace(
        singles,
        **{name: here(name) for name in ("engines", "warm_tokens", "running", "kv_tokens", "kv_capacity", *COLUMNS)},
        prefill_work=nothing,
        own_s=nothing,
        ahead_s=[max(0.0, ahead_s - by_s) for ahead_s, by_s in zip(here("ahead_s"), later, strict=True)],
        prefill_overhead_s=steps,
        open_steps=(),
        session_at=None if singles.session_at is None else at.get(singles.session_at),
        holds_adapter=here("holds_adapter") if singles.holds_adapter else (),
        prompts=here("prompts") if singles.prompts else (),
        prefill_shares=here("prefill_shares"),
        waited_s=0.0,
    )


COLUMNS = (*("seconds_per_token", "step_base_s", "step_per_sequence_s", "residence_s", "last_turn", "ready_since_s"),)
"""What a decode engine has as it is, whatever is asked of it."""


class _Columns:
    """Columns of some positions."""

    def __init__(self, candidates: Candidates, places: Sequence[int]) -> None:
        self._candidates = candidates
        self._places = places

    def __call__(self, name: str) -> list[float]:
        column = getattr(self._candidates, name)
        return [column[place] for place in self._places]


def _pair_columns(decode: Candidates, prefill: Candidates, matches: Sequence[Match]) -> dict[str, Sequence[object]]:
    """A pair's columns: room and steps of its decode engine, work and queue of its prefill engine."""
    at = [match.at for match in matches]
    took = [
        prefill.prefill_overhead_s[match.at] + match.transfer.seconds + ahead_s + step_s
        for match, ahead_s, step_s in zip(matches, decode.ahead_s, decode.prefill_overhead_s, strict=True)
    ]
    theirs: dict[str, Sequence[object]] = {
        name: [getattr(prefill, name)[place] for place in at]
        for name in ("warm_tokens", "prefill_work", "own_s", "ahead_s")
    }
    ours: dict[str, Sequence[object]] = {
        name: getattr(decode, name) for name in ("engines", "running", "kv_tokens", "kv_capacity", *COLUMNS)
    }
    beside = {
        name: getattr(decode, name) for name in ("holds_adapter", "prompts", "prefill_shares") if getattr(decode, name)
    }
    return {**ours, **theirs, **beside, "prefill_overhead_s": took}


def _joined(weighed: Weighed, said: Scored, matches: Sequence[Match], waits: Sequence[float]) -> Scored:
    """One table of what all scorers said: of singles, and of both sides of pairs together."""
    scored, costs = weighed.scored, weighed.costs
    singles = len(scored.totals)
    alone, here, there = (dict(zip(each.names, each.terms, strict=True)) for each in (scored, said, costs))
    names = tuple(dict.fromkeys((*scored.names, *said.names, *costs.names)))
    nothing = [0.0] * singles
    terms: list[Sequence[float]] = []
    for name in names:
        pair = list(here.get(name, repeat(0.0, len(matches))))
        if (side := there.get(name)) is not None:
            pair = [seconds + side[match.at] for seconds, match in zip(pair, matches, strict=True)]
        terms.append([*alone.get(name, nothing), *pair])
    totals = [
        *scored.totals,
        *(own + costs.totals[match.at] + wait for own, match, wait in zip(said.totals, matches, waits, strict=True)),
    ]
    return Scored((*names, "transfer"), (*terms, [*nothing, *waits]), totals)
