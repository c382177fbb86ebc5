"""The watch over canaries, from outcomes to events and metrics, through a real router's choice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gateway.canary.watch import CanaryMonitor
from gateway.pipeline.attempt import AttemptStatus
from gateway.pipeline.record import Outcome
from routing.blocks import Prompt
from routing.canary import CanaryStage, CanaryTerms, Rollout
from routing.decision.placement import AttemptReceipt
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request, Usage
from scorers.registry import routings
from tests.gateway.samples import an_outcome

MODEL = "m"
TERMS = CanaryTerms("v2", revision="v2", traffic_share=0.2, min_comparisons=50)


class Scene:
    """Two standing pods, one on trial, and what was said."""

    def __init__(self) -> None:
        self.stated: list[tuple[str, dict[str, Any]]] = []
        self.router = Router(routings()["warm"], exact_sizes=True)
        self.now_s = 0.0
        for url, revision in (("http://a", "v1"), ("http://b", "v1"), ("http://c", "v2")):
            facts = PodFacts(revision=revision)
            self.router.put_pod(Pod(url, state=PodState.READY, models=frozenset({MODEL}), facts=facts))
            self.router.reshape_pod(url, [EngineShape(kv_tokens=100_000)])
        self.rollout = self.router.rollout = Rollout([TERMS])
        self.watch = CanaryMonitor(self.rollout, self.router.fleet, self._say, lambda: self.now_s)

    def _say(self, _level: str, words: str, **more: Any) -> None:
        self.stated.append((words, more))

    def serve(self, number: int, slower: float) -> str:
        """One request from its choice to its end; who served it."""
        prompt = Prompt((1_000_000 + number,), range(500, 501), 500)
        request = Request(f"r{number}", Api.CHAT, MODEL, prompt, stream=True)
        placement = self.router.place(request, avoid=frozenset(), now_s=self.now_s, draw=0.5)
        took_s = 0.1 * (slower if placement.engine.pod == "http://c" else 1.0) * (1 + number % 7 / 100)
        self.now_s += took_s
        placement.first_token(self.now_s)
        placement.release(self.now_s)
        self.watch.on_outcome(outcome(request, placement.engine.pod, took_s))
        return placement.engine.pod


def outcome(request: Request, pod: str, ttft_s: float) -> Outcome:
    """A request that one pod answered in full, at twenty milliseconds a token."""
    attempt = AttemptReceipt(pod, "ok", (), 3, 500, 0, 0, ttft_s, ttft_s)
    return an_outcome(
        request=request,
        usage=Usage(500, 51, 0),
        attempts=(attempt,),
        ttft_s=ttft_s,
        duration_s=ttft_s + 1.0,
        decode_s=1.0,
    )


def test_a_slow_canary_is_taken_out_by_itself() -> None:
    """It has its share until the evidence is there, and nothing after; that is said."""
    scene = Scene()
    scene.watch.look()
    assert scene.stated == [("canary_started", {"canary": "v2", "traffic_share": 0.2})]
    served = [scene.serve(number, slower=3.0) for number in range(1_000)]
    assert 0 < served.count("http://c") < 100
    assert scene.rollout.canaries[0].stage is CanaryStage.ROLLED_BACK
    assert scene.stated[-1][0] == "canary_rolled_back"
    assert "http://c" not in served[-500:]


def test_a_failing_canary_is_taken_out_too() -> None:
    """An attempt that is its pod's fault counts as one that took for ever."""
    scene = Scene()
    scene.watch.look()
    for number in range(400):
        request = Request(f"r{number}", Api.CHAT, MODEL, Prompt((), (), 500), stream=True)
        scene.watch.on_outcome(outcome(request, "http://a", 0.1))
        reported = outcome(request, "http://c", 0.1)
        broken = replace(reported.attempts[0], result="upstream_5xx", actual_ttft_s=None)
        scene.watch.on_outcome(replace(reported, attempts=(broken,)))
    assert scene.rollout.canaries[0].stage is CanaryStage.ROLLED_BACK


def test_a_sound_canary_joins_the_others() -> None:
    """As fast as they are: in the end it gets its full part."""
    scene = Scene()
    scene.watch.look()
    served = [scene.serve(number, slower=0.9) for number in range(1_500)]
    assert scene.rollout.canaries[0].stage is CanaryStage.ACCEPTED
    assert served[-300:].count("http://c") > 60


def test_the_canary_gets_its_share_of_requests() -> None:
    """Of requests without a session, by the router's own choices: neither more nor much less than its share."""
    scene = Scene()
    scene.watch.look()
    served = [scene.serve(number, slower=1.0) for number in range(139)]
    # A fair draw of 0.2 gives 46 or more of 139 once in 20,000 runs; these ids are fixed.
    assert 139 * 0.1 < served.count("http://c") < 139 * 0.3


@pytest.mark.parametrize("end", [end for end in AttemptStatus if end.is_pod_failure])
def test_every_fault_of_a_pod_counts(end: AttemptStatus) -> None:
    """What the pipeline counts against a pod's health counts against a canary: a hung engine too."""
    scene = Scene()
    scene.watch.look()
    for number in range(60):
        request = Request(f"r{number}", Api.CHAT, MODEL, Prompt((), (), 500), stream=True)
        scene.watch.on_outcome(outcome(request, "http://a", 0.1))
        reported = outcome(request, "http://c", 0.1)
        failed = replace(reported.attempts[0], result=end.value, actual_ttft_s=None)
        scene.watch.on_outcome(replace(reported, attempts=(failed,)))
    assert scene.rollout.canaries[0].stage is CanaryStage.ROLLED_BACK


def test_a_trial_without_traffic_ends_by_the_clock() -> None:
    """It is rolled back after its longest time, and the log says why."""
    scene = Scene()
    scene.watch.look()
    scene.now_s = TERMS.max_duration_s - 1
    scene.watch.look()
    assert len(scene.stated) == 1
    scene.now_s = TERMS.max_duration_s
    scene.watch.look()
    words, more = scene.stated[-1]
    assert (words, more["reason"]) == ("canary_rolled_back", "max_duration")
    scene.watch.look()
    assert len(scene.stated) == 2


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_split_pods_are_not_put_on_trial(role: Role) -> None:
    """A canary whose pod has a role ends with one error and gets no request, also where its role shows only later."""
    for is_later in (False, True):
        scene = Scene()
        if is_later:
            scene.watch.look()
            scene.router.fleet.override_role("http://c", role)
        else:
            scene.router.reshape_pod("http://c", [EngineShape(role=role, kv_tokens=100_000)])
        scene.watch.look()
        scene.watch.look()
        errors = [more for words, more in scene.stated if words == "canary_rejected"]
        assert [(more["canary"], more["upstreams"]) for more in errors] == [("v2", ["http://c"])]
        assert {scene.serve(number, slower=1.0) for number in range(200)} == {"http://a", "http://b"}


def test_what_is_shown() -> None:
    """One stage is 1."""
    scene = Scene()
    scene.watch.look()
    families = {family.name: family for family in scene.watch.collect()}
    stages = {sample.labels["stage"]: sample.value for sample in families["hearth_canary_stage"].samples}
    assert stages == {"waiting": 0.0, "on_trial": 1.0, "accepted": 0.0, "rolled_back": 0.0}
