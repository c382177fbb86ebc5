"""All cascades of a gateway: from a request for a cascade's name to the plan of its run, and their state as JSON.

Chooses the first model by what can and may answer, by the prompt, by what a conversation had before, and by seconds and
price of each model where it would be placed now: a warm prefix on the larger model may beat a cold start on the
smaller. Models are indices into `Cascade.models`, cheapest first. Reads no body twice and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cascade.calibration_file import LadderFile, Stage
from cascade.drift import TRIAL
from cascade.logprobs import WITH_LOGPROBS
from cascade.models import Ladder, Rung, Wish, open_rungs, start_rung
from cascade.record import ESCALATED, KEPT, KEPT_FOR_SHARE
from gateway.cascades.cascade_config import Served, Silence, silence_of
from gateway.cascades.cascade_run import Climb, Plan, Shell
from gateway.cascades.constraints import Shares, Terms, terms_of
from gateway.cascades.features import Asked, read_asked, tokens_of
from gateway.cascades.shadow_sampling import Ask, Say, Shadowing, Standing
from gateway.pipeline.attempt import Leg, LegEnd
from routing.affinity import LastSeen
from routing.decision.router import Router
from routing.rejection import Reason, Refused
from routing.request import Request
from tenancy.tenants import Tenant

REMEMBERED_SESSIONS = 1 << 16

LOOKED_AHEAD_BYTES = 2048
"""Shorter prompts cost next to nothing to compute again, so cached tokens do not influence the choice."""

WARM_ENOUGH = 0.5
"""Share of a conversation's prompt: while this much is cached where it was answered before, it stays there."""


@dataclass(frozen=True, slots=True)
class View:
    """Cost and TTFT of one model, on the engine that would be chosen for it now."""

    at: int
    price: float | None
    """Of the whole answer, cached tokens at their own price; None where no engine is available."""
    ttft_s: float | None
    warm_share: float
    """Share of the prompt that is cached."""


def cheaper_above(first: View, above: Sequence[View], escalated_share: float) -> int:
    """Return the model to start with: `first`, or one above it that costs no more in all and starts no later.

    `escalated_share` is the share of answers that are escalated: with that probability the next model's price is added.
    """
    if first.price is None or first.ttft_s is None:
        return first.at
    for view in reversed(above):
        if view.price is None or view.ttft_s is None or view.ttft_s > first.ttft_s:
            continue
        if view.price <= first.price + escalated_share * view.price:
            return view.at
    return first.at


def stays(before: View, first: View, escalated_share: float) -> bool:
    """Return whether a conversation stays with the larger model that answered it before.

    Leaving loses the prefix cached there; that loss is part of the price of the model it would start with.
    """
    if before.price is None:
        return False
    if before.warm_share >= WARM_ENOUGH or first.price is None:
        return True
    return before.price <= first.price + escalated_share * before.price


class Ladders:
    """All cascades; one per gateway process."""

    def __init__(
        self,
        router: Router,
        served: Mapping[str, Served] = {},
        *,
        draw: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = lambda: 0.0,
        say: Say = lambda *_, **__: None,
        warns: bool = True,
    ) -> None:
        """`draw` returns uniform numbers in [0, 1). `warns`: whether to log cascades whose guarantee is unused; of
        several workers one does.
        """
        self._draw = draw
        self._clock = clock
        self._say = say
        self._warns = warns
        self._silences: dict[str, Silence] = {}
        self.shadowing = Shadowing(draw=draw, clock=clock, say=say)
        self._router = router
        self._served: dict[str, Served] = {}
        self.put(served)
        self._shares = Shares()
        self._sessions: LastSeen[tuple[str, str], int] = LastSeen(REMEMBERED_SESSIONS)

    def __contains__(self, model: str) -> bool:
        return model in self._served

    def put(self, served: Mapping[str, Served]) -> None:
        """Serve these cascades from now on, and log those whose guarantee is unused."""
        self._served = dict(served)
        self.names = frozenset(served)
        self.shadowing.put(served)
        found = {name: silence for name, each in served.items() if (silence := silence_of(each)) is not None}
        for name, silence in found.items():
            if self._warns and self._silences.get(name) != silence:
                self._say(silence.level, silence.message, ladder=name, effect=silence.effect, fix=silence.fix)
        self._silences = found

    def silence(self, name: str) -> Silence | None:
        """Return why a cascade does not use a guarantee; None where it does."""
        return self._silences.get(name)

    @property
    def all(self) -> Mapping[str, Ladder]:
        """Cascades by name."""
        return {name: served.ladder for name, served in self._served.items()}

    def standing(self, name: str) -> Standing | None:
        """Return the state of a cascade's guarantee; None where it was not calibrated."""
        return self.shadowing.standing(name)

    def begin(
        self,
        request: Request,
        body: bytes,
        tenant: Tenant,
        headers: Mapping[bytes, bytes],
        shell: Shell,
        now_s: float,
        ask: Ask | None = None,
    ) -> Climb:
        """Plan the run of a request for a cascade. Raises `Refused` where no model may answer it.

        `ask` sends shadow samples once the client has its answer; None: no samples.
        """
        plan = self._plan(request, body, tenant, headers, shell, now_s)
        sample = None if ask is None else self.shadowing.reserve(plan, body, ask)

        def choose(above: Sequence[int], shell: Shell) -> int:
            return self._choose(plan, above, request, shell)

        def settled(climb: Climb, leg: Leg | None) -> None:
            self._settle(climb, leg)
            if sample is not None:
                self.shadowing.settle(sample, climb, leg)

        return Climb(plan, shell, settled=settled, choose=choose)

    def _settle(self, climb: Climb, leg: Leg | None) -> None:
        name, session = climb.plan.ladder.name, climb.plan.session
        if leg is not None and leg.end is LegEnd.ANSWERED and session is not None:
            # A conversation stays with the model that answered it.
            self._sessions.put((name, session), climb.at)
        for at, step in climb.steps:
            if step.ended == ESCALATED or (step.ended == KEPT and step.why != KEPT_FOR_SHARE):
                self.shadowing.judged(name, at, is_kept=step.ended == KEPT)

    def _plan(
        self, request: Request, body: bytes, tenant: Tenant, headers: Mapping[bytes, bytes], shell: Shell, now_s: float
    ) -> Plan:
        served = self._served[request.model]
        cascade, asked = served.ladder, read_asked(body)
        terms = terms_of(cascade, tenant, headers, asked.wishes)
        allowed = self._allowed(cascade, request, asked, terms)
        file = self.shadowing.corrected(cascade)
        draw = self._draw()
        start = self._start(replace(cascade, file=file), allowed, request, asked, terms, draw)
        if terms.quality_first and request.continues is None:
            start = allowed[-1]
        if request.continues is None and len(allowed) > 1 and not terms.quality_first:
            start = self._look_ahead(cascade, file, allowed, start, request, shell, now_s)
        counter = self._router.counter(cascade.rungs[-1].model)
        return Plan(
            ladder=cascade,
            file=file,
            hold_back=served.hold_back,
            asked=asked,
            terms=terms,
            rungs=allowed,
            start=start,
            api=request.api,
            stream=request.stream,
            sequences=request.sequences,
            share=self._shares.of(tenant.name, cascade.name, terms.escalation_share),
            draw=draw,
            tokens=int(counter.tokens(request.prompt.size)),
            output_tokens=request.expected_output_tokens,
            session=request.session,
        )

    def _allowed(self, cascade: Ladder, request: Request, asked: Asked, terms: Terms) -> tuple[int, ...]:
        """Return the models that can and may answer. Raises `Refused` where there is none."""
        counter = self._router.counter(cascade.rungs[-1].model)
        wish = Wish(asked.needs, tokens_of(request, counter.size_per_token), terms.least, terms.most)
        if request.continues is not None:
            return self._pinned(cascade, request, wish)
        able = open_rungs(replace(cascade, rungs=tuple(self._with_length(each) for each in cascade.rungs)), wish)
        if not able:
            words = f"No rung of `{cascade.name}` that may answer can take this request."
            raise Refused(Reason.BAD_REQUEST, words, param="model")
        # Where none is available the pipeline rejects the request, after it has waited for one.
        return tuple(at for at in able if self._is_up(cascade.rungs[at].model, request)) or able

    def _pinned(self, cascade: Ladder, request: Request, wish: Wish) -> tuple[int, ...]:
        """Return the model of the pod that stored the response to continue: no other pod can continue it."""
        slot = self._router.responses.get(request.continues or "")
        for pod in self._router.fleet.pods:
            if any(engine.slot == slot for engine in pod.engines):
                served = [at for at, each in enumerate(cascade.rungs) if each.model in pod.models]
                return tuple(served[:1]) or open_rungs(cascade, wish)
        return open_rungs(cascade, wish) or (len(cascade.rungs) - 1,)

    def _with_length(self, model: Rung) -> Rung:
        """Return the model with the context length its pods report, where the configuration sets none."""
        if model.context_tokens is not None:
            return model
        pods = self._router.fleet.models().get(model.model, ())
        lengths = [card.max_model_len for pod in pods for card in pod.cards if card.name == model.model]
        return replace(model, context_tokens=max((length for length in lengths if length), default=None))

    def _is_up(self, model: str, request: Request) -> bool:
        return bool(self._router.fleet.roster(model, request.regions).engines)

    def _start(
        self, cascade: Ladder, allowed: tuple[int, ...], request: Request, asked: Asked, terms: Terms, draw: float
    ) -> int:
        """Return the first model by the prompt alone; the largest where a smaller one's answer could not be judged."""
        if cascade.file is None and (before := self._answered_before(cascade, request)) in allowed:
            return before
        start = start_rung(cascade, allowed, asked.bucket, asked.features, draw=draw)
        if start is None or (terms.climbs and not self._can_judge(cascade, request)):
            return allowed[-1]
        while start < allowed[-1] and not self.shadowing.asks(cascade.name, start):
            above = tuple(at for at in allowed if at > start)
            found = start_rung(cascade, above, asked.bucket, asked.features, draw=draw)
            start = allowed[-1] if found is None else found
        return start

    def _answered_before(self, cascade: Ladder, request: Request) -> int:
        """Return the model that answered this conversation last, -1 where there is none."""
        known = self._sessions.get((cascade.name, request.session)) if request.session else None
        return -1 if known is None else known

    def _can_judge(self, cascade: Ladder, request: Request) -> bool:
        """Return whether the answer will show the signal that the cascade was calibrated on."""
        file = cascade.file
        if file is None or not file.is_promised or file.stage is Stage.PROMPT:
            return True
        if request.api not in WITH_LOGPROBS or request.sequences > 1:
            return False
        if cascade.window is None:  # Then no log-probabilities are requested.
            return False
        hold_back = self._served[cascade.name].hold_back
        if request.stream and not hold_back.whole:
            return file.stage is not Stage.WHOLE
        return cascade.whole

    def _look_ahead(
        self,
        cascade: Ladder,
        file: LadderFile | None,
        allowed: Sequence[int],
        start: int,
        request: Request,
        shell: Shell,
        now_s: float,
    ) -> int:
        """Return `start`, or a larger model that answered the conversation or is cheaper by its cached prefix."""
        before = self._answered_before(cascade, request)
        above = [at for at in allowed if at > start]
        is_known = before in above
        if not above or (request.prompt.size < LOOKED_AHEAD_BYTES and not is_known):
            return start
        escalated_share = _climbing_share(file)
        views = {at: self._view(cascade, at, shell, now_s) for at in (start, *above)}
        if is_known and stays(views[before], views[start], escalated_share):
            return before
        return cheaper_above(views[start], [views[at] for at in above], escalated_share)

    def _choose(self, plan: Plan, above: Sequence[int], request: Request, shell: Shell) -> int:
        """Return the model to escalate to: the next one, or a larger one that is cheaper by its cached prefix.

        A frozen model, which keeps no answer, is skipped but for a trial.
        """
        name = plan.ladder.name
        above = [at for at in above[:-1] if self.shadowing.asks(name, at)] + list(above[-1:])
        if len(above) < 2 or request.prompt.size < LOOKED_AHEAD_BYTES:
            return above[0]
        now_s = self._clock()
        first, *others = [self._view(plan.ladder, at, shell, now_s) for at in above]
        return cheaper_above(first, others, _climbing_share(plan.file))

    def _view(self, cascade: Ladder, at: int, shell: Shell, now_s: float) -> View:
        model = cascade.rungs[at]
        request, _ = shell.ask(model.model, None)
        try:
            foreseen = self._router.foresee(request, avoid=frozenset(), now_s=now_s)
        except Refused:
            return View(at, None, None, 0.0)
        price = model.price.of(
            cold_tokens=foreseen.prompt_tokens - foreseen.warm_tokens,
            warm_tokens=foreseen.warm_tokens,
            output_tokens=request.expected_output_tokens,
            gpu_s=foreseen.own_s,
        )
        warm = foreseen.warm_tokens / foreseen.prompt_tokens if foreseen.prompt_tokens else 0.0
        return View(at, price, foreseen.ttft_s, warm)


def _climbing_share(file: LadderFile | None) -> float:
    """Return the expected share of escalated answers; without a calibration only broken ones are, so 0."""
    return 1.0 - file.evidence.kept if file is not None else 0.0


def show_ladders(cascades: Ladders) -> list[dict[str, Any]]:
    """Return all cascades, by name; `standing` is null without a calibration, `unused` null where one is in use."""
    return [_show(cascades, name) for name in sorted(cascades.all)]


def _show(cascades: Ladders, name: str) -> dict[str, Any]:
    cascade, standing, silence = cascades.all[name], cascades.standing(name), cascades.silence(name)
    models = [each.model for each in cascade.rungs]
    shown: dict[str, Any] = {"ladder": name, "rungs": models, "unused": None, "standing": None}
    if silence is not None:
        shown["unused"] = {"message": silence.message, "effect": silence.effect, "fix": silence.fix}
    if standing is not None:
        state = asdict(standing)
        state["frozen"] = [model for model, is_frozen in zip(models, standing.frozen, strict=False) if is_frozen]
        state["raised"] = dict(zip(models, standing.raised, strict=False))
        state["frozen_asked"] = f"1 of {TRIAL}"
        shown["standing"] = state
    return shown
