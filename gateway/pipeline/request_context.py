"""What is known of a request on its way through the spine, and the outcome that it comes to.

Written by the spine's parts only: `passage.py` leads, `placing.py` finds it a place, `carrying.py` has it carried.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.attempts.attempt import AttemptResult, AttemptStatus
from gateway.attempts.outcome import CLIENT_GONE_STATUS, HTTP, Frontend, Outcome
from gateway.attempts.rejections import RESPONSES, status_of
from gateway.attempts.resume_blocker import ResumeBlocker
from gateway.cascades.cascade_run import CascadeRun
from routing.decision.placement import Placement
from routing.decision.receipt import AttemptReceipt
from routing.rejection import ErrorOwner, RequestRejected
from routing.request import Request, Usage
from tenancy.objective import LatencyObjective
from tenancy.tenants import Caller

MakeDowngraded = Callable[[str], Request]
"""The same request to a smaller model; what is carried from then on asks for that one."""


class RequestContext(Struct):
    """What is known of a request on its way. Becomes an `Outcome`."""

    request: Request
    caller: Caller
    objective: LatencyObjective
    trace: str | None
    started_s: float
    make_downgraded: MakeDowngraded | None = None
    attempts: list[AttemptReceipt] = []
    avoid: frozenset[str] = frozenset()
    """Pods that have failed it."""
    attempt_offset: int = 0
    """So many attempts were of other rungs of its ladder."""
    last: Placement | None = None
    result: AttemptResult | None = None
    rejection: RequestRejected | None = None
    queued_s: float = 0.0
    """How long it waited for an engine that might take it."""
    coalesced_with: str | None = None
    frontend: Frontend = HTTP
    cascade_run: CascadeRun | None = None
    """Its way up a ladder, where it was asked of one."""
    serving_placement: Placement | None = None
    """Whose answer its client has begun to see."""
    held_s: float = 0.0
    """How long that was held back."""
    cuts: int = 0
    """Attempts that failed it after that."""
    cut_s: float | None = None
    """Since when nobody answers it any more, where its answer was cut; of use until it is gone on with."""
    resumed: int = 0
    """How often another pod has gone on with what a lost one had begun."""
    wasted_tokens: int = 0
    """Of its prompt and its answer, that were computed again for that."""

    def next_model(self) -> None:
        """It goes on to another rung: pods that have failed another model have not failed this one."""
        self.result, self.avoid, self.attempt_offset = None, frozenset(), len(self.attempts)

    def end_attempt(self, placement: Placement, leg: AttemptResult, now_s: float) -> None:
        """An attempt has ended. Where it was cut, what is asked for from now on is the rest."""
        self.result = leg
        has_gone_on = placement.first_token_s is not None
        if self.cuts and has_gone_on:
            self.resumed += not leg.is_behind
            self.wasted_tokens += _computed(placement, leg.usage) + leg.repeated
        if leg.begun and self.serving_placement is None:
            self.serving_placement, self.held_s = placement, leg.held_s
        if leg.begun and leg.end is not AttemptStatus.ANSWERED:
            self.cuts += 1
            if has_gone_on or self.cut_s is None:
                self.cut_s = now_s
            self.request = leg.continuation or self.request

    @property
    def model_attempts(self) -> list[AttemptReceipt]:
        """Attempts at the model that it asks for now."""
        return self.attempts[self.attempt_offset :]

    @property
    def usage(self) -> Usage | None:
        """What its answer took, by its engines' word; over all of them that had a part in it."""
        leg = self.result
        return None if leg is None else leg.client_usage or leg.usage

    @property
    def _first_s(self) -> float | None:
        """When its client's first token came from its engine."""
        first = self.serving_placement or self.last
        return first.first_token_s if first else None

    @property
    def _held_s(self) -> float:
        return self.held_s if self.serving_placement else self.result.held_s if self.result else 0.0

    @property
    def _resume_blocker(self) -> ResumeBlocker | None:
        leg = self.result
        if self.rejection is None or leg is None:
            return None
        has_rest = leg.continuation is not None or (self.cuts > 0 and not leg.begun)
        return leg.resume_blocker or (ResumeBlocker.CUTS if has_rest else None)

    @property
    def reached_engine(self) -> bool:
        """Whether a pod has worked for it: has begun to answer, or was at it when the client left."""
        leg = self.result
        if leg is not None and leg.end is AttemptStatus.ANSWERED:
            return leg.status < 400
        has_left = leg is None and self.rejection is None
        return self.last is not None and (has_left or self._first_s is not None)

    def outcome(self, now_s: float, at_s: float) -> Outcome:
        """The end of the journey, however it came."""
        leg, refusal = self.result, self.rejection
        first_s, usage = self._first_s, self.usage
        ttft_s = None if first_s is None else first_s - self.started_s + self._held_s
        return Outcome(
            request=self.request,
            at_s=at_s,
            tenant=self.caller.tenant.name,
            trace=self.trace,
            status=self._status(),
            reason=refusal.reason if refusal else None,
            detail=refusal.message if refusal else leg.detail if leg else "client gone",
            finish_reason=leg.finish_reason if leg else None,
            usage=usage or leg.counted if leg else None,
            attempts=tuple(self.attempts),
            ttft_s=ttft_s,
            duration_s=now_s - self.started_s,
            decode_s=None if first_s is None else now_s - first_s,
            tier=self.objective.tier.name,
            key_id=self.caller.key_id,
            user=self.caller.user,
            queued_s=self.queued_s,
            promise_met=self._objective_met(ttft_s, now_s - self.started_s, usage),
            group=self.caller.group,
            shared=self.coalesced_with,
            shell=self.frontend,
            cascade=self.cascade_run.result() if self.cascade_run else None,
            resumed=self.resumed,
            unresumed=self._resume_blocker,
            wasted_tokens=self.wasted_tokens,
            predicted_ttft_s=refusal.predicted_ttft_s if refusal else None,
            promised_ttft_s=refusal.objective_ttft_s if refusal else None,
        )

    def _objective_met(self, ttft_s: float | None, took_s: float, usage: Usage | None) -> bool | None:
        """Whether it got what was promised; None where nothing was, or the client was to blame or did not wait."""
        promise, leg, last = self.objective, self.result, self.last
        if not promise.is_bound or self.coalesced_with is not None:
            return None
        if self.rejection is not None:
            return None if RESPONSES[self.rejection.reason].fault is ErrorOwner.CLIENT else False
        if leg is None or last is None or leg.status >= 400:
            return None
        tokens = usage.completion_tokens // self.request.sequences if usage is not None else 0
        own_s = (self.serving_placement or last).predicted.own_prefill_s
        return promise.is_met(own_s=own_s, first_token_s=ttft_s, took_s=took_s, tokens=tokens)

    def _status(self) -> int:
        if self.rejection:
            return status_of(self.rejection.reason, anthropic=self.request.api.is_anthropic)
        return self.result.status if self.result else CLIENT_GONE_STATUS


def _computed(placement: Placement, usage: Usage | None) -> int:
    """Prompt tokens that its engine has computed: as it tells, and where it was lost as well, as was foretold."""
    predicted = placement.predicted
    prompt, warm = predicted.prompt_tokens, predicted.cached_tokens
    if usage is not None:
        prompt = usage.prompt_tokens
        warm = warm if usage.cached_tokens is None else usage.cached_tokens
    return max(0, round(prompt - warm))
