"""What the router is shown of a pod."""

from dataclasses import replace

import pytest

from gateway.config.discovery import Found
from gateway.config.models import ModelEntry
from gateway.fleet.display import as_shown
from gateway.fleet.watched import WatchedPod
from routing.facts import PodFacts
from routing.pods import ModelCard, Pod

URL = "http://a"
CARDS = (ModelCard("m"), ModelCard("lora", parent="m"))


def shown(*entries: ModelEntry, found: Found | None = None) -> Pod:
    pod = WatchedPod(found or Found(URL, "p"), cards=CARDS)
    return as_shown(Pod(URL, ready_since_s=3.0), pod, {entry.name: entry for entry in entries})


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


def test_what_its_models_tell_fills_in_where_nobody_spoke_of_the_pod() -> None:
    """Facts of the pod itself go first; a model that it does not serve says nothing of it."""
    told = ModelEntry("lora", kv_connector="NixlConnector", takes_priority=True)
    assert shown(ModelEntry("m"), told).facts.kv_connector == "NixlConnector"
    assert shown(told).takes_priority
    elsewhere = replace(told, pods=("http://b",))
    assert shown(elsewhere).facts.kv_connector is None
    assert not shown(elsewhere).takes_priority
    own = PodFacts(kv_connector="MooncakeConnector")
    assert shown(told, found=Found(URL, facts=own)).facts is own
