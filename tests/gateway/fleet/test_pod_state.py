"""Where a pod stands follows from what its probes and requests have shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.config.models import ModelEntry
from gateway.fleet.pod_state import MAX_SILENT_PROBES, WatchedPod, updated_pod
from gateway.fleet.probe import ModelListing, ProbeResult
from gateway.fleet.scrape import EngineReading, MetricsPage
from routing.facts import PodFacts
from routing.pods import EngineShape, ModelCard, Pod, PodState

LISTED = ModelListing((ModelCard("tiny"),))


def a_pod(*, ready: bool = True) -> WatchedPod:
    pod = WatchedPod(DiscoveredPod("http://a:1"))
    if ready:
        pod.apply_health(ProbeResult.HEALTHY, 0)
        pod.apply_models(LISTED, 0)
    return pod


def test_a_pod_is_starting_until_it_is_well_and_has_named_its_models() -> None:
    """Both are needed; failures before that are no news."""
    pod = a_pod(ready=False)
    assert pod.standing() is PodState.STARTING
    for health in (ProbeResult.UNREACHABLE, ProbeResult.NO_RESPONSE, ProbeResult.NOT_READY, ProbeResult.HEALTHY):
        pod.apply_health(health, 0)
        assert pod.standing() is PodState.STARTING
    pod.apply_models(ModelListing(None, "refuses our key"), 0)
    assert (pod.standing(), pod.problem) == (PodState.STARTING, "refuses our key")
    pod.apply_models(LISTED, 0)
    assert (pod.standing(), pod.problem) == (PodState.READY, "")


def test_a_pod_that_says_it_is_not_ready_is_not_used() -> None:
    """And is used again as soon as it says it is."""
    pod = a_pod()
    pod.apply_health(ProbeResult.NOT_READY, 1)
    assert pod.standing() is PodState.UNREADY
    pod.apply_health(ProbeResult.HEALTHY, 2)
    assert pod.standing() is PodState.READY


def test_one_silent_probe_changes_nothing_and_several_in_a_row_do() -> None:
    """A long pause of a busy pod is not its death."""
    pod = a_pod()
    for _ in range(MAX_SILENT_PROBES - 1):
        pod.apply_health(ProbeResult.NO_RESPONSE, 1)
    assert pod.standing() is PodState.READY
    pod.apply_health(ProbeResult.HEALTHY, 1)
    for _ in range(MAX_SILENT_PROBES):
        pod.apply_health(ProbeResult.NO_RESPONSE, 1)
    assert pod.standing() is PodState.OPEN_CIRCUIT


def test_a_pod_that_is_gone_is_broken_at_once_and_comes_back_by_a_probe() -> None:
    """Not before its pause is over."""
    pod = a_pod()
    pod.apply_health(ProbeResult.UNREACHABLE, 1)
    assert pod.standing() is PodState.OPEN_CIRCUIT
    pod.apply_health(ProbeResult.HEALTHY, 1.5)
    assert pod.standing() is PodState.SUSPECT
    pod.apply_health(ProbeResult.HEALTHY, 2)
    assert pod.standing() is PodState.READY


def test_a_pod_that_was_away_is_called_again_before_it_is_used() -> None:
    """Its models and its metrics may be another's."""
    pod = a_pod()
    pod.apply_metrics(MetricsPage(), 0)
    pod.apply_health(ProbeResult.NO_RESPONSE, 1)
    assert pod.listed_s == pod.scraped_s == float("-inf")


def test_drained_stands_above_everything() -> None:
    """Until it is undrained."""
    pod = a_pod()
    pod.is_drained = True
    pod.apply_health(ProbeResult.UNREACHABLE, 1)
    assert pod.standing() is PodState.DRAINING
    pod.is_drained = False
    assert pod.standing() is PodState.OPEN_CIRCUIT


def test_a_restart_is_detected_by_its_start_time_or_a_falling_counter() -> None:
    """And by absence, where the pod tells neither."""
    pod = a_pod()
    assert not pod.apply_metrics(MetricsPage(started_s=100.0), 0)
    assert not pod.apply_metrics(MetricsPage(started_s=100.0), 0)
    assert pod.apply_metrics(MetricsPage(started_s=160.0), 0)

    pod = a_pod()
    assert not pod.apply_metrics(MetricsPage({0: EngineReading(prompt_tokens=50.0)}), 0)
    assert not pod.apply_metrics(MetricsPage({0: EngineReading(prompt_tokens=60.0)}), 0)
    assert pod.apply_metrics(MetricsPage({0: EngineReading(prompt_tokens=10.0)}), 0)

    pod = a_pod()
    assert not pod.apply_metrics(None, 0)
    pod.apply_health(ProbeResult.UNREACHABLE, 1)
    pod.apply_health(ProbeResult.HEALTHY, 2)
    assert pod.apply_metrics(None, 2)
    assert not pod.apply_metrics(None, 3)


def test_a_pod_that_was_gone_for_a_moment_but_did_not_restart_keeps_its_cache() -> None:
    """Its process is the same, so its cache is."""
    pod = a_pod()
    pod.apply_metrics(MetricsPage(started_s=100.0), 0)
    pod.apply_health(ProbeResult.UNREACHABLE, 1)
    pod.apply_health(ProbeResult.HEALTHY, 2)
    assert not pod.apply_metrics(MetricsPage(started_s=100.0), 2)


def test_engines_are_reported_by_rank_only_where_there_are_several() -> None:
    """One engine is addressed without a rank."""
    pod = a_pod()
    assert pod.shapes() == ()
    pod.apply_metrics(MetricsPage({0: EngineReading(kv_capacity_tokens=1600, block_tokens=16)}), 0)
    assert pod.shapes() == (EngineShape(None, kv_tokens=1600, block_tokens=16),)
    pod.apply_metrics(MetricsPage({0: EngineReading(), 1: EngineReading()}), 0)
    assert [shape.rank for shape in pod.shapes()] == [0, 1]


def test_a_pod_whose_engine_is_silent_is_broken_however_well_its_server_is() -> None:
    """Until it shows a token, or begins a new life."""
    pod = a_pod()
    pod.mark_hung(10)
    for now_s in (11, 12, 60):
        pod.apply_health(ProbeResult.HEALTHY, now_s)
        assert pod.standing() is PodState.OPEN_CIRCUIT
    pod.is_hung = False
    assert pod.standing() is PodState.READY
    pod.mark_hung(70)
    pod.apply_health(ProbeResult.UNREACHABLE, 71)
    pod.apply_health(ProbeResult.HEALTHY, 200)
    pod.apply_models(LISTED, 200)
    assert pod.standing() is PodState.READY


def test_a_pod_whose_requests_fail_is_doubted_while_its_probes_are_well() -> None:
    """It may be asked where there is nobody else; once a probe says otherwise too, it is broken. One that is lost to a
    pause says nothing, several in a row do.
    """
    pod = a_pod()
    for _ in range(3):
        pod.breaker = pod.breaker.on_failure(1)
    assert pod.standing() is PodState.SUSPECT
    pod.apply_health(ProbeResult.NOT_READY, 1.1)
    assert pod.standing() is PodState.OPEN_CIRCUIT
    for health in (ProbeResult.HEALTHY, *[ProbeResult.NO_RESPONSE] * (MAX_SILENT_PROBES - 1)):
        pod.apply_health(health, 1.2)
        assert pod.standing() is PodState.SUSPECT
    pod.apply_health(ProbeResult.NO_RESPONSE, 1.2)
    assert pod.standing() is PodState.OPEN_CIRCUIT
    pod.apply_health(ProbeResult.HEALTHY, 1.25)
    pod.mark_hung(1.3)
    assert pod.standing() is PodState.OPEN_CIRCUIT


URL = "http://a"
CARDS = (ModelCard("m"), ModelCard("lora", parent="m"))


def shown(*entries: ModelEntry, found: DiscoveredPod | None = None) -> Pod:
    pod = WatchedPod(found or DiscoveredPod(URL, "p"), cards=CARDS)
    return updated_pod(Pod(URL, ready_since_s=3.0), pod, {entry.name: entry for entry in entries})


def test_without_a_model_list_a_pod_serves_what_it_says() -> None:
    """Its adapters are told from its models; what the router alone knows of it stays."""
    pod = shown()
    assert (sorted(pod.models), sorted(pod.adapters), pod.cards) == (["lora", "m"], ["lora"], CARDS)
    assert (pod.pool, pod.region, pod.ready_since_s) == ("p", None, 3.0)


@pytest.mark.parametrize(
    ("entry", "serves"),
    [
        (ModelEntry("m"), True),
        (ModelEntry("m", pods=(URL,)), True),
        (ModelEntry("m", pods=("http://b",)), False),
        (ModelEntry("m", inference_pool="p"), True),
        (ModelEntry("m", inference_pool="q"), False),
        (ModelEntry("m", pods=(URL,), inference_pool="q"), False),
    ],
)
def test_a_model_is_served_by_the_pods_it_is_meant_for(entry: ModelEntry, serves: bool) -> None:
    """By URL and by pool, whichever is said; other models of the pod are not concerned."""
    assert shown(entry).models == ({"m", "lora"} if serves else {"lora"})


def test_what_its_models_report_fills_in_where_no_one_spoke_of_the_pod() -> None:
    """Facts of the pod itself go first; a model that it does not serve says nothing of it."""
    reported = ModelEntry("lora", kv_connector="NixlConnector", takes_priority=True)
    assert shown(ModelEntry("m"), reported).facts.kv_connector == "NixlConnector"
    assert shown(reported).takes_priority
    elsewhere = replace(reported, pods=("http://b",))
    assert shown(elsewhere).facts.kv_connector is None
    assert not shown(elsewhere).takes_priority
    own = PodFacts(kv_connector="MooncakeConnector")
    assert shown(reported, found=DiscoveredPod(URL, facts=own)).facts is own
