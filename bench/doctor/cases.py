"""One case: a healthy fleet, a fault or change at a time, and what diagnosis says at each look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.doctor.collector import Collector
from bench.doctor.faults import CHANGES, FAULTS, Injected, InjectedFault, Stage
from bench.doctor.fleet import Fleet
from bench.doctor.masking import Mask
from bench.doctor.plans import healthy_plans
from diagnosis.baseline import Baseline, learned
from diagnosis.diagnose import NO_STATE, diagnose
from diagnosis.finding import Diagnosis
from simulator.clock import run_virtually

LOOK_S = 5.0

WARM_S = 150.0
"""Before the first look: caches fill."""

READY_S = 30.0
"""Looks before a fault is injected."""

NAMED_WITHIN_S = 60.0
CLEARED_WITHIN_S = 60.0

SURE = 0.7
"""Confidence from which a wrong answer counts as confidently wrong."""

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found in one case when the time to name it was over."""

    case: str
    seed: int
    expected: tuple[str, ...]
    found: str
    """Recipe of the first finding; `NOTHING` without one."""
    confidence: float
    has_right_pod: bool
    named_after_s: float | None
    """Seconds from the injection until the expected recipe stood first."""
    others: tuple[str, ...] = ()
    """Recipes of the other findings, in order."""
    first_question: str = ""
    cleared_after_s: float | None = None
    """Seconds from the end of the fault until no finding was left."""
    false_before: tuple[str, ...] = ()
    """Findings raised before anything was injected."""

    @property
    def is_right(self) -> bool:
        """Whether an expected recipe stands first, with the right pod; nothing where nothing is expected."""
        if not self.expected:
            return self.found == NOTHING
        return self.found in self.expected and self.has_right_pod

    @property
    def is_confidently_wrong(self) -> bool:
        """Whether something else stands first, with confidence."""
        return not self.is_right and self.found != NOTHING and self.confidence >= SURE


class Watch:
    """Looks at the fleet every few seconds, with all figures or with half of them."""

    def __init__(self, fleet: Fleet, collector: Collector, baseline: Baseline, mask: Mask | None) -> None:
        self._fleet = fleet
        self._collector = collector
        self._baseline = baseline
        self._mask = mask
        self._state = NO_STATE
        self._masked_state = NO_STATE
        self.diagnosis: Diagnosis | None = None
        self.masked: Diagnosis | None = None

    def look(self) -> Diagnosis:
        """Read everything and diagnose it."""
        self._collector.read()
        facts = self._collector.facts()
        self.diagnosis, self._state = diagnose(facts, self._baseline, self._state, facts.at_s)
        if self._mask is not None:
            held = self._mask.facts(facts)
            self.masked, self._masked_state = diagnose(held, self._baseline, self._masked_state, facts.at_s)
        return self.diagnosis


def learn_baseline(seed: int, length_s: float = 900.0) -> Baseline:
    """Return the baseline of a healthy fleet."""

    async def run() -> Baseline:
        fleet, collector = _fleet(seed)
        await asyncio.sleep(WARM_S)
        baseline = Baseline()
        for _ in range(int(length_s / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            collector.read()
            if fleet.loop.time() > WARM_S + 60:
                baseline = learned(baseline, collector.facts())
        return baseline

    return run_virtually(run())


def _fleet(seed: int) -> tuple[Fleet, Collector]:
    loop = asyncio.get_running_loop()
    fleet = Fleet(healthy_plans(), seed, loop)
    fleet.start()
    return fleet, Collector(fleet)


def play_faults(
    faults: Sequence[InjectedFault], seed: int, baseline: Baseline, *, with_mask: bool
) -> tuple[Verdict, Verdict | None]:
    """Inject faults together; return the verdict with all figures, and with half of them."""

    async def run() -> tuple[Verdict, Verdict | None]:
        fleet, collector = _fleet(seed)
        draws = Random(seed * 1_000 + len(faults[0].name) * 7 + len(faults))
        mask = Mask(draws) if with_mask else None
        watch = Watch(fleet, collector, baseline, mask)
        before = await _warm(watch)
        begin_s = fleet.loop.time()
        stage = Stage(fleet, collector, draws)
        done = [fault.inject(stage) for fault in faults]
        named: float | None = None
        expected = tuple(fault.recipe for fault in faults)
        until_s = max(fault.enough_s for fault in faults) + NAMED_WITHIN_S
        while fleet.loop.time() - begin_s < until_s:
            await asyncio.sleep(LOOK_S)
            found = watch.look().findings
            if named is None and found and found[0].recipe in expected:
                named = fleet.loop.time() - begin_s
        case = " + ".join(fault.name for fault in faults)
        full = _verdict(case, seed, expected, done, watch.diagnosis, named, before)
        half = _verdict(case, seed, expected, done, watch.masked, None, ()) if with_mask else None
        if len(faults) > 1 or faults[0].lingers:
            return full, half
        return await _cleared(full, watch, fleet, done), half

    return run_virtually(run())


async def _warm(watch: Watch) -> tuple[str, ...]:
    await asyncio.sleep(WARM_S)
    for _ in range(int(READY_S / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        found = watch.look().findings
    return tuple(finding.recipe for finding in found)


async def _cleared(verdict: Verdict, watch: Watch, fleet: Fleet, done: Sequence[Injected]) -> Verdict:
    """End the fault, and return the verdict with the seconds until its finding was gone."""
    for injected in done:
        injected.undo()
    end_s = fleet.loop.time()
    cleared = None
    while fleet.loop.time() - end_s < CLEARED_WITHIN_S + 2 * LOOK_S and cleared is None:
        await asyncio.sleep(LOOK_S)
        names = {finding.recipe for finding in watch.look().findings}
        if not names & set(verdict.expected):
            cleared = fleet.loop.time() - end_s
    return Verdict(
        **{name: getattr(verdict, name) for name in Verdict.__slots__ if name != "cleared_after_s"},
        cleared_after_s=cleared,
    )


def _verdict(
    case: str,
    seed: int,
    expected: tuple[str, ...],
    done: Sequence[Injected],
    diagnosis: Diagnosis | None,
    named: float | None,
    before: tuple[str, ...],
) -> Verdict:
    findings = () if diagnosis is None else diagnosis.findings
    top = findings[0] if findings else None
    right = False
    if top is not None and top.recipe in expected:
        pods = done[expected.index(top.recipe)].pods
        right = not pods or (bool(top.pods) and set(top.pods) <= set(pods)) or set(pods) <= set(top.pods)
    return Verdict(
        case=case,
        seed=seed,
        expected=expected,
        found=NOTHING if top is None else top.recipe,
        confidence=0.0 if top is None else top.confidence,
        has_right_pod=right,
        named_after_s=named,
        others=tuple(finding.recipe for finding in findings[1:]),
        first_question="" if diagnosis is None else diagnosis.first.question.value,
        false_before=before,
    )


def play_change(name: str, seed: int, baseline: Baseline, *, length_s: float = 180.0) -> Verdict:
    """Change the workload without a fault; the worst look counts."""
    inject = CHANGES[name]

    async def run() -> Verdict:
        fleet, collector = _fleet(seed)
        watch = Watch(fleet, collector, baseline, None)
        before = await _warm(watch)
        inject(Stage(fleet, collector, Random(seed)))
        worst: Diagnosis | None = None
        begin_s = fleet.loop.time()
        while fleet.loop.time() - begin_s < length_s:
            await asyncio.sleep(LOOK_S)
            diagnosis = watch.look()
            if worst is None or (diagnosis.findings and not worst.findings):
                worst = diagnosis
        verdict = _verdict(name, seed, (), (), worst, None, before)
        last = watch.diagnosis
        question = "" if last is None else last.first.question.value
        return Verdict(
            **{field: getattr(verdict, field) for field in Verdict.__slots__ if field != "first_question"},
            first_question=question,
        )

    return run_virtually(run())


BY_NAME = {fault.name: fault for fault in FAULTS}
