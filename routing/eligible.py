"""Who may serve a request: the roster that it chooses from, or why there is none.

Ready engines come first; where none is left those that are there for prefill only, and then those that are in doubt.
Reads the fleet and changes nothing.
"""

from __future__ import annotations

from routing.fleet import Fleet
from routing.refusal import Reason, Refused
from routing.request import Request
from routing.roster import Roster


def eligible(fleet: Fleet, request: Request, avoid: frozenset[str]) -> Roster:
    """The engines that may serve a request, without the pods to `avoid`. Raises `Refused` where there are none."""
    model, regions = request.model, request.regions
    roster = _left_of(fleet.roster(model, regions), request, avoid)
    if not roster.engines and roster.has_prefillers:
        roster = _left_of(fleet.prefill_roster(model, regions, at_large=True), request, avoid)
    if not roster.engines:
        roster = _left_of(fleet.doubted_roster(model, regions), request, avoid)
    if not roster.engines:
        raise _nobody_for(fleet, request)
    return roster


def _left_of(roster: Roster, request: Request, avoid: frozenset[str]) -> Roster:
    """Those who have not failed the request, and are among the pods that it may go to."""
    if request.pods is not None:
        avoid |= {engine.pod for engine in roster.engines} - request.pods
    return roster.without(avoid) if avoid else roster


def _nobody_for(fleet: Fleet, request: Request) -> Refused:
    model, regions = request.model, request.regions
    if fleet.knows(model, regions):
        return _not_ready(f"No pod that serves `{model}` is ready.")
    if fleet.misses(model):
        return _not_ready(f"No pod serves `{model}` now.")
    if fleet.may_hear_more(regions):
        return _not_ready(
            f"No pod that you may use is known to serve `{model}`; not all have told yet what they serve."
        )
    if not fleet.knows(model):
        return Refused(Reason.UNKNOWN_MODEL, f"The model `{model}` does not exist.", param="model")
    words = f"The model `{model}` is served in no region that your requests may be computed in."
    return Refused(Reason.REGION_NOT_ALLOWED, words, param="model")


def _not_ready(words: str) -> Refused:
    return Refused(Reason.NO_POD_READY, words, param="model", retry_after_s=2.0)
