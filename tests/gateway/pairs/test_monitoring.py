"""Pairs are counted by connector and end, fallbacks by reason; prefill pods in no pair are reported once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.pairs.monitoring import SETTLED_S, PairMetrics, UnpairedPrefillMonitor
from gateway.pipeline.attempt import AttemptResult, AttemptStatus
from routing.facts import Role
from routing.pairing.partners import UnpairedReason
from tests.gateway.pairs.played import ANSWERED, PairCarrier, Part, led
from tests.routing.pairing.test_pairing import NIXL, put, split_fleet


class Scene:
    """A prefill pod without a connector, beside a decode pod."""

    def __init__(self) -> None:
        self.router = split_fleet(0, 1)
        put(self.router, "http://lost", replace(NIXL, role=Role.PREFILL, kv_connector=None))
        self.stated: list[tuple[str, str, dict[str, Any]]] = []
        self.now_s = 0.0
        self.watch = UnpairedPrefillMonitor(self.router, self._say, lambda: self.now_s)

    def _say(self, level: str, words: str, **more: Any) -> None:
        self.stated.append((level, words, more))

    def look(self, now_s: float) -> None:
        self.now_s = now_s
        self.watch.look()


def test_it_is_reported_once_with_the_fix() -> None:
    """Not while the fleet comes up, and not again while nothing changes for it."""
    scene = Scene()
    scene.look(0.0)
    scene.look(SETTLED_S - 0.1)
    assert scene.stated == []
    for now_s in (SETTLED_S, SETTLED_S + 1):
        scene.look(now_s)
    put(scene.router, "http://more", replace(NIXL, role=Role.DECODE))
    scene.look(SETTLED_S + 2)
    fix = {"upstream": "http://lost", "kv_connector": None, "fix": UnpairedReason.NO_CONNECTOR.value}
    assert scene.stated == [("warning", "prefill_pod_unpaired", fix)]
    assert list(scene.watch.standing_warnings()) == [("prefill_pod_unpaired", "http://lost")]
    put(scene.router, "http://lost", replace(NIXL, role=Role.PREFILL))
    scene.look(SETTLED_S + 3)
    assert list(scene.watch.standing_warnings()) == []


def test_another_reason_is_reported_too() -> None:
    """A pod that is given a connector which does not fit either."""
    scene = Scene()
    scene.look(0.0)
    scene.look(SETTLED_S)
    put(scene.router, "http://lost", replace(NIXL, role=Role.PREFILL, revision="v9"))
    scene.look(SETTLED_S + 1)
    assert [more["fix"] for _, _, more in scene.stated] == [
        UnpairedReason.NO_CONNECTOR.value,
        UnpairedReason.NO_PARTNER.value,
    ]


def test_one_that_finds_its_partner_in_time_is_not_reported() -> None:
    """Split pods come up one after the other."""
    scene = Scene()
    scene.look(0.0)
    put(scene.router, "http://lost", replace(NIXL, role=Role.PREFILL))
    scene.look(SETTLED_S + 1)
    assert scene.stated == []


def test_pairs_and_fallbacks_are_counted() -> None:
    """A stalled hand-over, and then an answer from one pod."""
    _, stage = led(
        PairCarrier(decodes=[Part(AttemptResult(AttemptStatus.UPSTREAM_5XX, 500)), Part(ANSWERED, token_after_s=0.05)])
    )
    _, good = led(PairCarrier())
    tallies = PairMetrics()
    for outcome in (*stage.outcomes, *good.outcomes):
        tallies.on_outcome(outcome)
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in tallies.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_sum", "_count"))
    }
    assert shown["hearth_pair_attempts_total", "NixlConnector", "upstream_5xx"] == 1
    assert shown["hearth_pair_attempts_total", "NixlConnector", "ok"] == 1
    assert shown["hearth_pair_fallbacks_total", "transfer_failed"] == 1
    assert shown["hearth_kv_transfer_duration_seconds_sum", "NixlConnector"] > 0
    assert shown["hearth_kv_transfer_duration_seconds_count", "NixlConnector"] == 1
    assert shown["hearth_kv_transfer_predicted_seconds_count", "NixlConnector"] == 1
