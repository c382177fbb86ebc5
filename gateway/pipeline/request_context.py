"""The state of one request in the pipeline. Written by the pipeline and its queue only; ends as a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from gateway.pipeline.attempt import AttemptResult, AttemptStatus, ResumeBlocker
from gateway.pipeline.record import CLIENT_GONE_STATUS, Outcome
from gateway.pipeline.rejections import RESPONSES, status_of
from routing.decision.placement import AttemptReceipt, Placement
from routing.rejection import ErrorOwner, RequestRejected
from routing.request import Request, Usage
from routing.retries import ESCALATION, FIRST
from tenancy.objective import LatencyObjective
from tenancy.tenants import Caller

MakeDowngraded = Callable[[str], Request]
"""Makes the same request to a make_downgraded model, which is what the transport sends from then on."""

PrefixLookup = Callable[[Request], Awaitable[Request]]
"""Looks up what engines have cached of a request. Returns it with the result, or as it was, within its own timeout."""


class RequestContext(Struct):
    """One request. Loop times in seconds; what is shown of it goes straight into its record."""

    request: Request
    """As it is sent next: of another model after a downgrade, the remaining answer after a cut."""
    caller: Caller
    objective: LatencyObjective
    started_s: float
    record: Outcome = field(default_factory=Outcome)
    lookup: PrefixLookup | None = None
    make_downgraded: MakeDowngraded | None = None
    downgrade: Callable[[], Request | None] | None = None
    """Of a cascade's request: makes the request to a cheaper model under overload, None where there is none."""
    avoid: frozenset[str] = frozenset()
    """URLs of pods that have failed it."""
    attempt_kind: str = FIRST
    """Kind of its next attempt, for its receipt."""
    attempt_offset: int = 0
    """Index of its first attempt at the model that it asks for now."""
    last: Placement | None = None
    result: AttemptResult | None = None
    """Result of the last attempt; None before its end, and where the client left before it."""
    rejection: RequestRejected | None = None
    serving_placement: Placement | None = None
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
        self.attempt_kind = ESCALATION if self.record.attempts else FIRST
        self.result, self.avoid, self.attempt_offset = None, frozenset(), len(self.record.attempts)

    def end_lookup(self) -> None:
        """Report the end to the listener of its cache lookup, where it had one."""
        if self.request.lookup is not None:
            self.request.lookup.listener.over()

    def end_attempt(self, placement: Placement, result: AttemptResult, now_s: float) -> None:
        """Take the result of an attempt. Where it was cut, the request from now on is for the remaining answer."""
        self.result = result
        has_gone_on = placement.first_token_s is not None
        if self.cuts and has_gone_on:
            self.record.resumes += not result.is_behind
            self.record.wasted_tokens += _computed(placement, result.usage) + result.repeated
        if result.started and self.serving_placement is None:
            self.serving_placement, self.held_s = placement, result.held_s
        if result.started and result.end is not AttemptStatus.OK:
            self.cuts += 1
            if has_gone_on or self.cut_s is None:
                self.cut_s = now_s
            self.request = result.continuation or self.request

    @property
    def model_attempts(self) -> tuple[AttemptReceipt, ...]:
        """Attempts at the model that it asks for now."""
        return self.record.attempts[self.attempt_offset :]

    @property
    def has_started(self) -> bool:
        """Whether the last attempt has sent the client some of its answer."""
        return self.result is not None and self.result.started

    @property
    def usage(self) -> Usage | None:
        """Usage of its answer as reported by the engines that generated it; None where they reported none."""
        return None if self.result is None else self.result.client_usage or self.result.usage

    @property
    def reached_engine(self) -> bool:
        """Whether a pod has worked for it: has begun to answer, or was at it when the client left."""
        result = self.result
        if result is not None and result.end is AttemptStatus.OK:
            return result.status < 400
        has_left = result is None and self.rejection is None
        return self.last is not None and (has_left or self._first_token_s is not None)

    @property
    def _first_token_s(self) -> float | None:
        """When the engine generated the first token that the client received."""
        first = self.last if self.serving_placement is None else self.serving_placement
        return None if first is None else first.first_token_s

    def finish(self, now_s: float, at_s: float) -> Outcome:
        """Complete its record, however it ended. `now_s` is loop time, `at_s` Unix time."""
        record, result, rejection, caller = self.record, self.result, self.rejection, self.caller
        usage, first_s = self.usage, self._first_token_s
        request = self.request
        record.id, record.api, record.model, record.stream = request.id, request.api, request.model, request.stream
        record.session, record.downgraded_from = request.session, request.downgraded_from
        record.requested_model, record.path = request.requested_model, request.arrival.path
        record.client_request_id = request.arrival.client_request_id
        record.prompt, record.prompt_bytes = request.prompt, request.prompt.size
        record.is_constrained = request.is_constrained
        record.max_tokens = None if request.max_tokens is None else request.max_tokens * request.sequences
        record.at_s, record.duration_s = at_s, now_s - self.started_s
        record.tenant, record.tier = caller.tenant.name, self.objective.tier.name
        record.trust_domain = caller.tenant.trust_domain
        record.key_id, record.user, record.group = caller.key_id, caller.user, caller.group
        if rejection is not None:
            record.status = status_of(rejection.reason, anthropic=self.request.api.is_anthropic)
            record.reason, record.error = rejection.reason, rejection.message
            record.predicted_ttft_s, record.slo_ttft_s = rejection.predicted_ttft_s, rejection.objective_ttft_s
            record.resume_failure = self._resume_blocker()
        elif result is not None:
            record.status, record.error = result.status, result.detail
        else:
            record.status, record.error = CLIENT_GONE_STATUS, "client gone"
        if result is not None:
            record.finish_reason, record.usage = result.finish_reason, usage or result.counted
        if first_s is not None:
            held_s = self.held_s if self.serving_placement is not None else result.held_s if result else 0.0
            record.ttft_s = first_s - self.started_s + held_s
            if result is None or not result.was_paused:
                record.decode_s = now_s - first_s
        if self.objective.is_bound and record.coalesced_with is None:
            record.slo_met = self._has_met_objective(record, usage)
        return record

    def _resume_blocker(self) -> ResumeBlocker | None:
        """Why a rejected request was not resumed; None where there was nothing to resume."""
        result = self.result
        if result is None:
            return None
        has_rest = result.continuation is not None or (self.cuts > 0 and not result.started)
        return result.resume_blocker or (ResumeBlocker.MAX_CUTS_OR_TIMEOUT if has_rest else None)

    def _has_met_objective(self, record: Outcome, usage: Usage | None) -> bool | None:
        """Return None where the client was to blame or did not wait."""
        result, last = self.result, self.last
        if self.rejection is not None:
            return None if RESPONSES[self.rejection.reason].fault is ErrorOwner.CLIENT else False
        if result is None or last is None or result.status >= 400:
            return None
        tokens = usage.completion_tokens // self.request.sequences if usage is not None else 0
        if result.was_paused:  # What followed the first token waited for its client.
            if record.ttft_s is None:
                return None
            tokens = min(tokens, 1)
        own_prefill_s = (last if self.serving_placement is None else self.serving_placement).predicted.own_prefill_s
        return self.objective.is_met(
            own_s=own_prefill_s, first_token_s=record.ttft_s, took_s=record.duration_s, tokens=tokens
        )


def _computed(placement: Placement, usage: Usage | None) -> int:
    """Return the uncached prompt tokens of an attempt: as reported by its engine, else as predicted."""
    predicted = placement.predicted
    prompt, warm = predicted.prompt_tokens, predicted.cached_tokens
    if usage is not None:
        prompt = usage.prompt_tokens
        warm = warm if usage.cached_tokens is None else usage.cached_tokens
    return max(0, round(prompt - warm))
