"""All ladders of a gateway: from a request to a ladder's name to the plan of its climb.

Chooses the first rung by what can and may answer, by the prompt, by what a conversation had before, and by seconds and
price of each rung where it would be placed now. Reads no body twice and asks no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cascade.ladder import Ladder, Rung
from cascade.ladder_file import LadderFile, Stage
from cascade.starting import Wish, open_rungs, start_rung
from gateway.cascades.climb import Climb, Ending
from gateway.cascades.constraints import Terms, terms_of
from gateway.cascades.escalation_share import Shares
from gateway.cascades.features import Asked, read_asked, tokens_of
from gateway.cascades.guarantee_state import Standing
from gateway.cascades.logprobs import WITH_LOGPROBS
from gateway.cascades.placement import View, cheaper_above, stays
from gateway.cascades.plan import Plan
from gateway.cascades.record import ESCALATED, KEPT, KEPT_FOR_SHARE
from gateway.cascades.request_builder import Shell
from gateway.cascades.served import Served
from gateway.cascades.shadow_sampling import Ask, Say, Shadowing
from gateway.cascades.uncalibrated import Silence, silence_of
from gateway.pipeline.attempt import LegEnd
from routing.affinity import LastSeen
from routing.decision.router import Router
from routing.rejection import Reason, Refused
from routing.request import Request
from tenancy.tenants import Tenant

REMEMBERED_SESSIONS = 1 << 16

LOOKED_AHEAD_BYTES = 2048
"""A shorter prompt costs next to nothing to compute anew: where it is warm decides nothing."""


class Ladders:
    """One per gateway process."""

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
        """`draw` gives uniform numbers in [0, 1). `warns`: whether ladders that never ask a smaller rung are logged; of
        several workers one does that.
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
        """Serve these from now on."""
        self._served = dict(served)
        self.shadowing.put(served)
        found = {name: silence for name, each in served.items() if (silence := silence_of(each)) is not None}
        for name, silence in found.items():
            if self._warns and self._silences.get(name) != silence:
                self._say(silence.level, silence.message, ladder=name, effect=silence.effect, fix=silence.fix)
        self._silences = found

    def silence(self, name: str) -> Silence | None:
        """Return why a ladder leaves its promise unused; None where it does not."""
        return self._silences.get(name)

    @property
    def all(self) -> Mapping[str, Ladder]:
        """By name."""
        return {name: served.ladder for name, served in self._served.items()}

    def standing(self, name: str) -> Standing | None:
        """How a ladder's promise stands, None where it was not calibrated."""
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
        """The way of a request to a ladder's name. Raises `Refused` where no rung may answer it.

        `ask` asks a model once more, after the client has its answer.
        """
        plan = self._plan(request, body, tenant, headers, shell, now_s)

        def choose(above: Sequence[int], shell: Shell) -> int:
            return self._choose(plan, above, request, shell)

        climb = Climb(plan, shell, settled=self._settled, choose=choose)
        if ask is not None and self.shadowing.takes(climb):
            climb.wants_shadow(lambda ending: self._shadow(climb, ending, body, ask))
        return climb

    def _shadow(self, climb: Climb, ending: Ending, body: bytes, ask: Ask) -> None:
        judge_model = self._served[climb.plan.ladder.name].shadow.judge_model
        self.shadowing.settled(climb, ending, body, ask, judge_model)

    def _settled(self, climb: Climb, ending: Ending) -> None:
        if ending.leg is not None and ending.leg.end is LegEnd.ANSWERED and climb.plan.session is not None:
            # A conversation stays with what answered it.
            self._sessions.put((climb.plan.ladder.name, climb.plan.session), climb.at)
        name = climb.plan.ladder.name
        for at, step in climb.steps:
            if step.ended == ESCALATED or (step.ended == KEPT and step.why != KEPT_FOR_SHARE):
                self.shadowing.judged(name, at, is_kept=step.ended == KEPT)

    def _plan(
        self, request: Request, body: bytes, tenant: Tenant, headers: Mapping[bytes, bytes], shell: Shell, now_s: float
    ) -> Plan:
        served = self._served[request.model]
        ladder, asked = served.ladder, read_asked(body)
        terms = terms_of(ladder, tenant, headers, asked.wishes)
        rungs = self._open(ladder, request, asked, terms)
        file = self.shadowing.corrected(ladder)
        draw = self._draw()
        start = self._start(replace(ladder, file=file), rungs, request, asked, terms, draw)
        if terms.quality_first and request.continues is None:
            start = rungs[-1]
        if request.continues is None and len(rungs) > 1 and not terms.quality_first:
            start = self._look_ahead(ladder, file, rungs, start, request, shell, now_s)
        counter = self._router.counter(ladder.rungs[-1].model)
        tokens = int(counter.tokens(request.prompt.size))
        share = self._shares.of(tenant.name, ladder.name, terms.escalation_share)
        return Plan(
            ladder=ladder,
            file=file,
            hold_back=served.hold_back,
            asked=asked,
            terms=terms,
            rungs=rungs,
            start=start,
            api=request.api,
            stream=request.stream,
            sequences=request.sequences,
            share=share,
            draw=draw,
            tokens=tokens,
            output_tokens=request.expected_output_tokens,
            session=request.session,
        )

    def _open(self, ladder: Ladder, request: Request, asked: Asked, terms: Terms) -> tuple[int, ...]:
        counter = self._router.counter(ladder.rungs[-1].model)
        wish = Wish(asked.needs, tokens_of(request, counter.size_per_token), terms.least, terms.most, terms.climbs)
        known = replace(ladder, rungs=tuple(self._with_length(rung) for rung in ladder.rungs))
        if request.continues is not None:
            return self._pinned(ladder, request, wish)
        able = open_rungs(known, wish)
        if not able:
            words = f"No rung of `{ladder.name}` that may answer can take this request."
            raise Refused(Reason.BAD_REQUEST, words, param="model")
        # Where all are down the spine says so, after it has waited for one.
        return tuple(at for at in able if self._is_up(ladder.rungs[at].model, request)) or able

    def _pinned(self, ladder: Ladder, request: Request, wish: Wish) -> tuple[int, ...]:
        """Only the pod that stored a response can go on with it."""
        slot = self._router.responses.get(request.continues or "")
        for pod in self._router.fleet.pods:
            if any(engine.slot == slot for engine in pod.engines):
                served = [at for at, rung in enumerate(ladder.rungs) if rung.model in pod.models]
                return tuple(served[:1]) or open_rungs(ladder, wish)
        return open_rungs(ladder, wish) or (len(ladder.rungs) - 1,)

    def _with_length(self, rung: Rung) -> Rung:
        """Its pods say how much they can take, where the configuration does not."""
        if rung.context_tokens is not None:
            return rung
        pods = self._router.fleet.models().get(rung.model, ())
        told = [card.max_model_len for pod in pods for card in pod.cards if card.name == rung.model]
        return replace(rung, context_tokens=max((length for length in told if length), default=None))

    def _is_up(self, model: str, request: Request) -> bool:
        return bool(self._router.fleet.roster(model, request.regions).engines)

    def _start(
        self, ladder: Ladder, rungs: tuple[int, ...], request: Request, asked: Asked, terms: Terms, draw: float
    ) -> int:
        """By the prompt alone: the top rung, where what it would say of itself could not be judged."""
        if ladder.file is None and (before := self._answered_before(ladder, request)) in rungs:
            return before
        start = start_rung(ladder, rungs, asked.bucket, asked.features, draw=draw)
        if start is None or (terms.climbs and not self._can_judge(ladder, request)):
            return rungs[-1]
        while start < rungs[-1] and not self.shadowing.asks(ladder.name, start):
            above = tuple(at for at in rungs if at > start)
            found = start_rung(ladder, above, asked.bucket, asked.features, draw=draw)
            start = rungs[-1] if found is None else found
        return start

    def _answered_before(self, ladder: Ladder, request: Request) -> int:
        """The rung that answered this conversation last, -1 where there is none."""
        known = self._sessions.get((ladder.name, request.session)) if request.session else None
        return -1 if known is None else known

    def _can_judge(self, ladder: Ladder, request: Request) -> bool:
        """Whether the signal that the ladder goes by can be had of the answer."""
        file = ladder.file
        if file is None or not file.is_promised or file.stage is Stage.PROMPT:
            return True
        if request.api not in WITH_LOGPROBS or request.sequences > 1:
            return False
        if ladder.window is None:  # Then no log-probabilities are asked for.
            return False
        hold_back = self._served[ladder.name].hold_back
        if request.stream and not hold_back.whole:
            return file.stage is not Stage.WHOLE
        return ladder.whole

    def _look_ahead(
        self,
        ladder: Ladder,
        file: LadderFile | None,
        rungs: Sequence[int],
        start: int,
        request: Request,
        shell: Shell,
        now_s: float,
    ) -> int:
        """A rung above the first one, where the conversation was there or a warm prefix makes it the cheaper one."""
        before = self._sessions.get((ladder.name, request.session)) if request.session else None
        above = [at for at in rungs if at > start]
        is_known = before is not None and before in above
        if not above or (request.prompt.size < LOOKED_AHEAD_BYTES and not is_known):
            return start
        climbs = _climbing_share(file)
        views = {at: self._view(ladder, at, shell, now_s) for at in (start, *above)}
        if is_known and before is not None and stays(views[before], views[start], climbs):
            return before
        return cheaper_above(views[start], [views[at] for at in above], climbs)

    def _choose(self, plan: Plan, above: Sequence[int], request: Request, shell: Shell) -> int:
        """Of the rungs to climb to: a higher one at once, where its warm prefix makes it the cheaper one.

        One that keeps nothing is passed over, but for a trial now and then.
        """
        name = plan.ladder.name
        above = [at for at in above[:-1] if self.shadowing.asks(name, at)] + list(above[-1:])
        if len(above) < 2 or request.prompt.size < LOOKED_AHEAD_BYTES:
            return above[0]
        now_s = self._clock()
        first, *others = [self._view(plan.ladder, at, shell, now_s) for at in above]
        return cheaper_above(first, others, _climbing_share(plan.file))

    def _view(self, ladder: Ladder, at: int, shell: Shell, now_s: float) -> View:
        rung = ladder.rungs[at]
        request, _ = shell.ask(rung.model, None)
        try:
            foreseen = self._router.foresee(request, avoid=frozenset(), now_s=now_s)
        except Refused:
            return View(at, None, None, 0.0)
        price = rung.price.of(
            cold_tokens=foreseen.prompt_tokens - foreseen.warm_tokens,
            warm_tokens=foreseen.warm_tokens,
            output_tokens=request.expected_output_tokens,
            gpu_s=foreseen.own_s,
        )
        warm = foreseen.warm_tokens / foreseen.prompt_tokens if foreseen.prompt_tokens else 0.0
        return View(at, price, foreseen.ttft_s, warm)


def _climbing_share(file: LadderFile | None) -> float:
    """Of the answers of low rungs, about so many are thrown away; without a calibration only broken ones."""
    return 1.0 - file.evidence.kept if file is not None else 0.0
