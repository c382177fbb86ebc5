"""What a pod is before anybody has asked it, and what its engines are called."""

from routing.facts import NO_FACTS, Role
from routing.pods import Engine, EngineShape, Pod, PodState


def test_a_pod_without_ranks_is_one_engine_of_its_own_name() -> None:
    """Names are what receipts show; a rank stands behind the pod's, the first one too."""
    assert Engine(0, "http://a").name == "http://a"
    assert [Engine(rank, "http://b", rank).name for rank in (0, 1)] == ["http://b#0", "http://b#1"]


def test_a_pod_just_found_serves_no_request() -> None:
    """It is starting, and nothing is known of it: no model, no engine, no region."""
    pod = Pod("http://a")
    assert pod.state is PodState.STARTING
    assert not {*pod.models, *pod.adapters, *pod.cards, *pod.engines}
    assert (pod.pool, pod.region, pod.facts) == (None, None, NO_FACTS)


def test_an_engine_of_which_nothing_is_reported_may_do_everything() -> None:
    """Prefill and decode, with a cache of a size that nobody knows."""
    assert EngineShape() == EngineShape(rank=None, role=Role.EITHER, kv_tokens=None, block_tokens=None)
