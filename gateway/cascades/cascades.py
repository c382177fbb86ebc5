"""All cascades of a gateway: from a request for a cascade's name to the plan of its run, and their state as JSON.

Chooses the first model by what can and may answer, by the prompt, by what a conversation had before, and by seconds and
price of each model where it would be placed now: a warm prefix on the larger model may beat a cold start on the
smaller. Models are indices into `Cascade.models`, cheapest first. Reads no body twice and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from cascade.calibration_file import CalibrationFile, SignalStage
from cascade.drift import TRIAL_INTERVAL
from cascade.logprobs import LOGPROB_APIS
from cascade.models import Cascade, CascadeModel, StartConstraints, eligible_models, initial_model
from cascade.record import ESCALATED, KEPT, KEPT_FOR_ESCALATION_LIMIT
from gateway.cascades.cascade_config import CascadeConfig, UnusedGuarantee, unused_guarantee
from gateway.cascades.cascade_run import CascadePlan, CascadeRun, ModelRequestBuilder
from gateway.cascades.constraints import CascadeConstraints, EscalationLimiters, read_constraints
from gateway.cascades.features import CascadeRequestFeatures, estimated_tokens, read_features
from gateway.cascades.shadow_sampling import AskModel, GuaranteeStatus, LogFunction, ShadowSampler
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from routing.affinity import RecentMap
from routing.decision.router import Router
from routing.rejection import Reason, RequestRejected
from routing.request import Request
from tenancy.tenants import Tenant

if TYPE_CHECKING:
    from gateway.cascades.live_collection import CollectAnswer, LiveCollector

MAX_SESSIONS = 1 << 16

MIN_LOOKAHEAD_BYTES = 2048
"""Shorter prompts cost next to nothing to compute again, so cached tokens do not influence the choice."""

MIN_CACHED_SHARE = 0.5
"""Share of a conversation's prompt: while this much is cached where it was answered before, it stays there."""


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """Cost and TTFT of one model, on the engine that would be chosen for it now."""

    model_index: int
    price: float | None
    """Of the whole answer, cached tokens at their own price; None where no engine is available."""
    ttft_s: float | None
    cached_share: float
    """Share of the prompt that is cached."""


def cheaper_larger_model(first: ModelEstimate, above: Sequence[ModelEstimate], escalated_share: float) -> int:
    """Return the model to start with: `first`, or one above it that costs no more in all and starts no later.

    `escalated_share` is the share of answers that are escalated: with that probability the next model's price is added.
    """
    if first.price is None or first.ttft_s is None:
        return first.model_index
    for view in reversed(above):
        if view.price is None or view.ttft_s is None or view.ttft_s > first.ttft_s:
            continue
        if view.price <= first.price + escalated_share * view.price:
            return view.model_index
    return first.model_index


def should_stay(before: ModelEstimate, first: ModelEstimate, escalated_share: float) -> bool:
    """Return whether a conversation stays with the larger model that answered it before.

    Leaving loses the prefix cached there; that loss is part of the price of the model it would start with.
    """
    if before.price is None:
        return False
    if before.cached_share >= MIN_CACHED_SHARE or first.price is None:
        return True
    return before.price <= first.price + escalated_share * before.price


class Cascades:
    """All cascades; one per gateway process."""

    def __init__(
        self,
        router: Router,
        served: Mapping[str, CascadeConfig] = {},
        *,
        draw: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = lambda: 0.0,
        log_event: LogFunction = lambda *_, **__: None,
        warns: bool = True,
    ) -> None:
        """`draw` returns uniform numbers in [0, 1). `warns`: whether to log cascades whose guarantee is unused; of
        several workers one does.
        """
        self._draw = draw
        self._clock = clock
        self._log_event = log_event
        self._warns = warns
        self._silences: dict[str, UnusedGuarantee] = {}
        self.shadow_sampler = ShadowSampler(draw=draw, clock=clock, log_event=log_event)
        self.collector: LiveCollector | None = None
        """None while no cascade collects."""
        self._router = router
        self._may_leave: Callable[[Tenant, str], bool] = lambda *_: True
        self._served: dict[str, CascadeConfig] = {}
        self.apply(served)
        self._shares = EscalationLimiters()
        self._sessions: RecentMap[tuple[str, str], int] = RecentMap(MAX_SESSIONS)

    def limit_providers(self, may_leave: Callable[[Tenant, str], bool]) -> None:
        """Ask a model of providers only where the limits of a tenant leave room for it, as `may_leave` returns."""
        self._may_leave = may_leave

    def __contains__(self, model: str) -> bool:
        return model in self._served

    def apply(self, served: Mapping[str, CascadeConfig]) -> None:
        """Serve these cascades from now on, and log those whose guarantee is unused."""
        self._served = dict(served)
        self.names = frozenset(served)
        self.judging_names = frozenset(name for name, each in served.items() if each.cascade.judges_answers)
        self._models = {name: frozenset(model.name for model in each.cascade.models) for name, each in served.items()}
        self.shadow_sampler.apply(served)
        if self.collector is None and any(each.collect for each in served.values()):
            from gateway.cascades.live_collection import LiveCollector  # noqa: PLC0415 - off in most gateways

            self.collector = LiveCollector(draw=self._draw, clock=self._clock)
        if self.collector is not None:
            self.collector.apply(served)
        found = {name: silence for name, each in served.items() if (silence := unused_guarantee(each)) is not None}
        for name, silence in found.items():
            if self._warns and self._silences.get(name) != silence:
                self._log_event(silence.level, silence.event, cascade=name, effect=silence.effect, fix=silence.fix)
        self._silences = found

    def models_of(self, name: str) -> frozenset[str]:
        """Return the models behind a name; empty where it is no cascade."""
        return self._models.get(name, frozenset())

    def unused_guarantee(self, name: str) -> UnusedGuarantee | None:
        """Return why a cascade does not use a guarantee; None where it does."""
        return self._silences.get(name)

    def standing_warnings(self) -> Iterator[tuple[str, str]]:
        """Yield event and cascade of each warning about a guarantee whose cause lasts."""
        return ((why.event, name) for name, why in self._silences.items() if why.level == "warning")

    @property
    def by_name(self) -> Mapping[str, Cascade]:
        """Cascades by name."""
        return {name: served.cascade for name, served in self._served.items()}

    def guarantee_status(self, name: str) -> GuaranteeStatus | None:
        """Return the state of a cascade's guarantee; None where it was not calibrated."""
        return self.shadow_sampler.guarantee_status(name)

    def plan_run(
        self,
        request: Request,
        body: bytes,
        tenant: Tenant,
        headers: Mapping[bytes, bytes],
        shell: ModelRequestBuilder,
        now_s: float,
        ask: AskModel | None = None,
        collect: CollectAnswer | None = None,
    ) -> CascadeRun:
        """Plan the run of a request for a cascade. Raises `RequestRejected` where no model may answer it.

        `ask` sends shadow samples once the client has its answer, `collect` asks for answers to be labelled; None: no
        samples.
        """
        plan = self._plan(request, body, tenant, headers, shell, now_s)
        sample = None if ask is None else self.shadow_sampler.reserve(plan, body, ask)
        collector, collected = self.collector, None
        if collector is not None and ask is not None and collect is not None and request.continues is None:
            collected = collector.reserve(plan, body, tenant, collect, ask)

        def choose(above: Sequence[int], shell: ModelRequestBuilder) -> int:
            return self._choose(plan, above, request, shell)

        def settled(run: CascadeRun, result: AttemptResult | None) -> None:
            self._settle(run, result)
            if sample is not None:
                self.shadow_sampler.settle(sample, run, result)
            if collected is not None and collector is not None:
                collector.settle(collected, is_answered=result is not None and result.end is AttemptStatus.OK)

        return CascadeRun(plan, shell, settled=settled, choose=choose)

    def _settle(self, run: CascadeRun, result: AttemptResult | None) -> None:
        name, session = run.plan.cascade.name, run.plan.session
        if result is not None and result.end is AttemptStatus.OK and session is not None:
            # A conversation stays with the model that answered it.
            self._sessions.put((name, session), run.model_index)
        for at, step in run.steps:
            if step.result == ESCALATED or (step.result == KEPT and step.reason != KEPT_FOR_ESCALATION_LIMIT):
                self.shadow_sampler.record_verdict(name, at, is_kept=step.result == KEPT)

    def _plan(
        self,
        request: Request,
        body: bytes,
        tenant: Tenant,
        headers: Mapping[bytes, bytes],
        shell: ModelRequestBuilder,
        now_s: float,
    ) -> CascadePlan:
        served = self._served[request.model]
        cascade, request_features = served.cascade, read_features(body)
        terms = read_constraints(cascade, tenant, headers, request_features.options)
        if terms.bucket is not None:
            request_features = msgspec.structs.replace(request_features, bucket=terms.bucket)
        allowed = self._allowed(cascade, request, request_features, terms, tenant)
        file = self.shadow_sampler.corrected_calibration(cascade)
        draw = self._draw()
        start = self._start(replace(cascade, calibration=file), allowed, request, request_features, terms, draw)
        if terms.quality_first and request.continues is None:
            start = allowed[-1]
        if request.continues is None and len(allowed) > 1 and not terms.quality_first:
            start = self._look_ahead(cascade, file, allowed, start, request, shell, now_s)
        counter = self._router.counters[cascade.models[-1].name]
        return CascadePlan(
            cascade=cascade,
            calibration=file,
            hold_back=served.hold_back,
            features=request_features,
            constraints=terms,
            allowed_models=allowed,
            start_index=start,
            api=request.api,
            stream=request.stream,
            sequences=request.sequences,
            escalation_limiter=self._shares.limiter(tenant.name, cascade.name, terms.escalation_share),
            draw=draw,
            tokens=int(counter.tokens(request.prompt.size)),
            output_tokens=request.expected_output_tokens,
            session=request.session,
        )

    def _allowed(
        self,
        cascade: Cascade,
        request: Request,
        request_features: CascadeRequestFeatures,
        terms: CascadeConstraints,
        tenant: Tenant,
    ) -> tuple[int, ...]:
        """Return the models that can and may answer. Raises `RequestRejected` where there is none."""
        counter = self._router.counters[cascade.models[-1].name]
        wish = StartConstraints(
            request_features.needs, estimated_tokens(request, counter.size_per_token), terms.min_index, terms.max_index
        )
        if request.continues is not None:
            return self._pinned(cascade, request, wish)
        able = eligible_models(replace(cascade, models=tuple(self._with_length(each) for each in cascade.models)), wish)
        if not able:
            lacks = "context length, tools or images"
            words = f"No permitted model of cascade `{cascade.name}` supports this request ({lacks})."
            raise RequestRejected(Reason.BAD_REQUEST, words, param="model")
        # Where none is available the pipeline rejects the request, after it has waited for one.
        return tuple(at for at in able if self._is_up(cascade.models[at].name, request, tenant)) or able

    def _pinned(self, cascade: Cascade, request: Request, wish: StartConstraints) -> tuple[int, ...]:
        """Return the model of the pod that stored the response to continue: no other pod can continue it."""
        slot = self._router.responses.get(request.continues or "")
        for pod in self._router.fleet.pods:
            if any(engine.slot == slot for engine in pod.engines):
                served = [at for at, each in enumerate(cascade.models) if each.name in pod.models]
                return tuple(served[:1]) or eligible_models(cascade, wish)
        return eligible_models(cascade, wish) or (len(cascade.models) - 1,)

    def _with_length(self, model: CascadeModel) -> CascadeModel:
        """Return the model with the context length its pods report, where the configuration sets none."""
        if model.context_tokens is not None:
            return model
        pods = self._router.fleet.models().get(model.name, ())
        lengths = [card.max_model_len for pod in pods for card in pod.cards if card.name == model.name]
        return replace(model, context_tokens=max((length for length in lengths if length), default=None))

    def _is_up(self, model: str, request: Request, tenant: Tenant) -> bool:
        """Return whether a model can be asked now. One of providers alone can only where their limits have room: an
        answer that would be discarded for it is then returned unjudged.
        """
        eligible = self._router.fleet.eligible(model, request.regions)
        if not eligible.grants:
            return bool(eligible.engines)
        if any(engine.pod not in eligible.grants for engine in eligible.engines):
            return True
        is_granted = len(eligible.forbidden_to(request.grants)) < len(eligible.engines)
        return is_granted and self._may_leave(tenant, model)

    def _start(
        self,
        cascade: Cascade,
        allowed: tuple[int, ...],
        request: Request,
        request_features: CascadeRequestFeatures,
        terms: CascadeConstraints,
        draw: float,
    ) -> int:
        """Return the first model by the prompt alone; the largest where a smaller one's answer could not be judged."""
        if cascade.calibration is None and (before := self._answered_before(cascade, request)) in allowed:
            return before
        start = initial_model(cascade, allowed, request_features.bucket, request_features.prompt, draw=draw)
        if start is None or (terms.may_escalate and not self._can_judge(cascade, request)):
            return allowed[-1]
        while start < allowed[-1] and not self.shadow_sampler.should_ask(cascade.name, start):
            above = tuple(at for at in allowed if at > start)
            found = initial_model(cascade, above, request_features.bucket, request_features.prompt, draw=draw)
            start = allowed[-1] if found is None else found
        return start

    def _answered_before(self, cascade: Cascade, request: Request) -> int:
        """Return the model that answered this conversation last, -1 where there is none."""
        known = self._sessions.get((cascade.name, request.session)) if request.session else None
        return -1 if known is None else known

    def _can_judge(self, cascade: Cascade, request: Request) -> bool:
        """Return whether the answer will show the signal that the cascade was calibrated on."""
        file = cascade.calibration
        if file is None or not file.is_promised or file.stage is SignalStage.PROMPT:
            return True
        if request.api not in LOGPROB_APIS or request.sequences > 1:
            return False
        if cascade.holdback_window is None:  # Then no log-probabilities are requested.
            return False
        hold_back = self._served[cascade.name].hold_back
        if request.stream and not hold_back.complete_streams:
            return file.stage is not SignalStage.WHOLE
        return cascade.judges_unary

    def _look_ahead(
        self,
        cascade: Cascade,
        file: CalibrationFile | None,
        allowed: Sequence[int],
        start: int,
        request: Request,
        shell: ModelRequestBuilder,
        now_s: float,
    ) -> int:
        """Return `start`, or a larger model that answered the conversation or is cheaper by its cached prefix."""
        before = self._answered_before(cascade, request)
        above = [at for at in allowed if at > start]
        is_known = before in above
        if not above or (request.prompt.size < MIN_LOOKAHEAD_BYTES and not is_known):
            return start
        escalated_share = _escalation_share(file)
        views = {at: self._view(cascade, at, shell, now_s) for at in (start, *above)}
        if is_known and should_stay(views[before], views[start], escalated_share):
            return before
        return cheaper_larger_model(views[start], [views[at] for at in above], escalated_share)

    def _choose(self, plan: CascadePlan, above: Sequence[int], request: Request, shell: ModelRequestBuilder) -> int:
        """Return the model to escalate to: the next one, or a larger one that is cheaper by its cached prefix.

        A frozen model, which keeps no answer, is skipped but for a trial.
        """
        name = plan.cascade.name
        above = [at for at in above[:-1] if self.shadow_sampler.should_ask(name, at)] + list(above[-1:])
        if len(above) < 2 or request.prompt.size < MIN_LOOKAHEAD_BYTES:
            return above[0]
        now_s = self._clock()
        first, *others = [self._view(plan.cascade, at, shell, now_s) for at in above]
        return cheaper_larger_model(first, others, _escalation_share(plan.calibration))

    def _view(self, cascade: Cascade, at: int, shell: ModelRequestBuilder, now_s: float) -> ModelEstimate:
        model = cascade.models[at]
        request, _ = shell.ask(model.name, None)
        try:
            predicted = self._router.estimate(request, avoid=frozenset(), now_s=now_s)
        except RequestRejected:
            return ModelEstimate(at, None, None, 0.0)
        price = model.price.cost(
            cold_tokens=predicted.prompt_tokens - predicted.cached_tokens,
            warm_tokens=predicted.cached_tokens,
            output_tokens=request.expected_output_tokens,
            gpu_s=predicted.own_prefill_s,
        )
        warm = predicted.cached_tokens / predicted.prompt_tokens if predicted.prompt_tokens else 0.0
        return ModelEstimate(at, price, predicted.ttft_s, warm)


def _escalation_share(file: CalibrationFile | None) -> float:
    """Return the expected share of escalated answers; without a calibration only broken ones are, so 0."""
    return 1.0 - file.evidence.kept if file is not None else 0.0


def show_cascades(cascades: Cascades) -> list[dict[str, Any]]:
    """Return all cascades, by name; `guarantee` is null without a calibration, `inactive` null where one is in use."""
    return [_show(cascades, name) for name in sorted(cascades.by_name)]


def _show(cascades: Cascades, name: str) -> dict[str, Any]:
    models = [each.name for each in cascades.by_name[name].models]
    shown: dict[str, Any] = {"cascade": name, "models": models, "inactive": None, "guarantee": None}
    if cascades.collector is not None and (collected := cascades.collector.status(name)) is not None:
        shown["collect"] = collected
    if (unused := cascades.unused_guarantee(name)) is not None:
        shown["inactive"] = {"reason": unused.event, "effect": unused.effect, "fix": unused.fix}
    if (status := cascades.guarantee_status(name)) is not None:
        shown["guarantee"] = {
            "is_guaranteed": status.is_promised,
            "max_loss": status.max_loss,
            "examples": status.examples,
            "has_drifted": status.has_drifted,
            "shadow_samples": status.shadow_samples,
            "agreement": status.agreement,
            "shadow_cost": status.shadow_cost,
            "frozen_models": [model for model, is_frozen in zip(models, status.frozen, strict=False) if is_frozen],
            "frozen_trial_interval": TRIAL_INTERVAL,
            "raised_steps": dict(zip(models, status.raised, strict=False)),
            "drift": _show_drift(status),
        }
    return shown


def _show_drift(status: GuaranteeStatus) -> dict[str, Any]:
    return {
        "comparison": status.comparison,
        "worse": status.worse,
        "better": status.better,
        "is_suspected": status.is_suspected,
        "samples_to_learn": status.samples_to_learn,
        "restored_by": _restored_by(status),
        "windows": [
            {
                "samples": window.samples,
                "window": window.limits.window,
                "is_of_surest": window.limits.is_of_surest,
                "worse": window.worse,
                "better": window.better,
                "suspect_at": window.limits.suspect,
                "withdraw_at": window.limits.stop,
                "false_alarm_probability": window.limits.false_stop,
                "noticed_probability": window.limits.noticed,
            }
            for window in status.windows
        ],
    }


def _restored_by(status: GuaranteeStatus) -> str | None:
    """Return what would restore the guarantee; None where nothing is wrong."""
    if status.has_drifted:
        return "calibrate again on answers of today's traffic, and reload"
    if status.is_suspected:
        return "samples that are as good as the reference, or a new calibration"
    if any(status.frozen):
        return "an accepted answer of the frozen model, or a new calibration"
    return None
