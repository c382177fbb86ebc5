"""The state of one request in the pipeline. Written by the pipeline and its queue only; ends as a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from gateway.pipeline.attempt import Bar, Leg, LegEnd
from gateway.pipeline.record import CLIENT_GONE_STATUS, Outcome
from gateway.pipeline.rejections import SAYINGS, status_of
from routing.decision.placement import Placement
from routing.decision.receipt import Attempt
from routing.rejection import Fault, Refused
from routing.request import Request, Usage
from tenancy.objective import Promise
from tenancy.tenants import Caller

Smaller = Callable[[str], Request]
"""Makes the same request to a smaller model, which is what the transport sends from then on."""

Look = Callable[[Request], Awaitable[Request]]
"""Looks up what engines have cached of a request. Returns it with the result, or as it was, within its own timeout."""


class RequestContext(Struct):
    """One request. Loop times in seconds; what is shown of it goes straight into its record."""

    request: Request
    """As it is sent next: of another model after a downgrade, the remaining answer after a cut."""
    caller: Caller
    promise: Promise
    started_s: float
    record: Outcome = field(default_factory=Outcome)
    look: Look | None = None
    smaller: Smaller | None = None
    step_down: Callable[[], Request | None] | None = None
    """Of a cascade's request: makes the request to a cheaper model under overload, None where there is none."""
    avoid: frozenset[str] = frozenset()
    """URLs of pods that have failed it."""
    attempt_offset: int = 0
    """Index of its first attempt at the model that it asks for now."""
    last: Placement | None = None
    leg: Leg | None = None
    """Result of the last attempt; None before its end, and where the client left before it."""
    refusal: Refused | None = None
    serving: Placement | None = None
    """The first placement whose answer its client has begun to receive."""
    held_s: float = 0.0
    """How long that answer was held back."""
    cuts: int = 0
    """Attempts that failed after that."""
    cut_s: float | None = None
    """When its answer was cut; of use until it is resumed."""
    has_ended: bool = False
    """Whether the pipeline has left it: what is still charged for it is a leak."""

    def begin_model(self, request: Request) -> None:
        """Go on to another model of its cascade: pods that have failed another model have not failed this one."""
        self.end_lookup()
        self.request = request
        self.leg, self.avoid, self.attempt_offset = None, frozenset(), len(self.record.attempts)

    def end_lookup(self) -> None:
        """Report the end to the listener of its cache lookup, where it had one."""
        if self.request.sight is not None:
            self.request.sight.watch.over()

    def end_attempt(self, placement: Placement, leg: Leg, now_s: float) -> None:
        """Take the result of an attempt. Where it was cut, the request from now on is for the remaining answer."""
        self.leg = leg
        has_gone_on = placement.first_token_s is not None
        if self.cuts and has_gone_on:
            self.record.resumed += not leg.is_behind
            self.record.wasted_tokens += _computed(placement, leg.usage) + leg.repeated
        if leg.begun and self.serving is None:
            self.serving, self.held_s = placement, leg.held_s
        if leg.begun and leg.end is not LegEnd.ANSWERED:
            self.cuts += 1
            if has_gone_on or self.cut_s is None:
                self.cut_s = now_s
            self.request = leg.rest or self.request

    @property
    def tried(self) -> tuple[Attempt, ...]:
        """Attempts at the model that it asks for now."""
        return self.record.attempts[self.attempt_offset :]

    @property
    def has_begun(self) -> bool:
        """Whether the last attempt has sent the client some of its answer."""
        return self.leg is not None and self.leg.begun

    @property
    def usage(self) -> Usage | None:
        """Usage of its answer as reported by the engines that generated it; None where they reported none."""
        return None if self.leg is None else self.leg.told or self.leg.usage

    @property
    def was_served(self) -> bool:
        """Whether a pod has worked for it: has begun to answer, or was at it when the client left."""
        leg = self.leg
        if leg is not None and leg.end is LegEnd.ANSWERED:
            return leg.status < 400
        has_left = leg is None and self.refusal is None
        return self.last is not None and (has_left or self._first_token_s is not None)

    @property
    def _first_token_s(self) -> float | None:
        """When the engine generated the first token that the client received."""
        first = self.serving or self.last
        return None if first is None else first.first_token_s

    def finish(self, now_s: float, at_s: float) -> Outcome:
        """Complete its record, however it ended. `now_s` is loop time, `at_s` Unix time."""
        record, leg, refusal, caller = self.record, self.leg, self.refusal, self.caller
        usage, first_s = self.usage, self._first_token_s
        record.describe(self.request)
        record.at_s, record.duration_s = at_s, now_s - self.started_s
        record.tenant, record.tier = caller.tenant.name, self.promise.tier.name
        record.key_id, record.user, record.group = caller.key_id, caller.user, caller.group
        if refusal is not None:
            record.status = status_of(refusal.reason, anthropic=self.request.api.is_anthropic)
            record.reason, record.detail = refusal.reason, refusal.message
            record.predicted_ttft_s, record.promised_ttft_s = refusal.predicted_ttft_s, refusal.promised_ttft_s
            record.unresumed = self._resume_blocker()
        elif leg is not None:
            record.status, record.detail = leg.status, leg.detail
        else:
            record.status, record.detail = CLIENT_GONE_STATUS, "client gone"
        if leg is not None:
            record.finish_reason, record.usage = leg.finish_reason, usage or leg.counted
        if first_s is not None:
            held_s = self.held_s if self.serving else leg.held_s if leg else 0.0
            record.ttft_s, record.decode_s = first_s - self.started_s + held_s, now_s - first_s
        if self.promise.is_bound and record.shared is None:
            record.promise_met = self._has_met_objective(record, usage)
        return record

    def _resume_blocker(self) -> Bar | None:
        """Why a rejected request was not resumed; None where there was nothing to resume."""
        leg = self.leg
        if leg is None:
            return None
        has_rest = leg.rest is not None or (self.cuts > 0 and not leg.begun)
        return leg.barred or (Bar.CUTS if has_rest else None)

    def _has_met_objective(self, record: Outcome, usage: Usage | None) -> bool | None:
        """Return None where the client was to blame or did not wait."""
        leg, last = self.leg, self.last
        if self.refusal is not None:
            return None if SAYINGS[self.refusal.reason].fault is Fault.CLIENT else False
        if leg is None or last is None or leg.status >= 400:
            return None
        tokens = usage.completion_tokens // self.request.sequences if usage is not None else 0
        own_s = (self.serving or last).predicted.own_s
        return self.promise.is_kept(own_s=own_s, first_token_s=record.ttft_s, took_s=record.duration_s, tokens=tokens)


def _computed(placement: Placement, usage: Usage | None) -> int:
    """Return the uncached prompt tokens of an attempt: as reported by its engine, else as predicted."""
    predicted = placement.predicted
    prompt, warm = predicted.prompt_tokens, predicted.warm_tokens
    if usage is not None:
        prompt = usage.prompt_tokens
        warm = warm if usage.cached_tokens is None else usage.cached_tokens
    return max(0, round(prompt - warm))
