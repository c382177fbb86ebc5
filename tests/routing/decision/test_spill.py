"""Where requests go in a fleet with a cloud: on premises first, beyond only while that is late, and back."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as struct_replace

from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.facts import PodFacts
from tests.routing.engines import add_pod, ask, place, router_of, serve, texts_apart

CLOUD = ("http://cloud-0", "http://cloud-1")


def hybrid_fleet() -> Router:
    """Two engines on premises, two in a cloud."""
    router = router_of(2)
    for url in CLOUD:
        add_pod(router, url, facts=PodFacts(spill_rank=1))
    return router


def test_none_of_a_thousand_requests_goes_to_the_cloud_while_home_is_in_time() -> None:
    """Neither for a cached prefix, nor because the cloud is idle."""
    router = hybrid_fleet()
    open_requests: list[Placement] = []
    for number in range(1_000):
        placement = place(router, ask(texts_apart(number)), now_s=0.2 * number, draw=number % 10 / 10)
        placement.first_token(0.2 * number + placement.predicted.ttft_s)
        open_requests.append(placement)
        assert placement.engine.pod not in CLOUD
        if len(open_requests) > 12:
            open_requests.pop(0).release(0.2 * number)


def test_requests_leave_when_home_is_late_and_come_back() -> None:
    """A queue of some seconds on both engines; once it has gone the next request stays."""
    router = hybrid_fleet()
    waiting = [place(router, ask(texts_apart(number) * 8)) for number in range(40)]
    pods = [placement.engine.pod for placement in waiting]
    assert pods[0] not in CLOUD
    assert any(pod in CLOUD for pod in pods)
    first_out = next(at for at, pod in enumerate(pods) if pod in CLOUD)
    assert not any(pod in CLOUD for pod in pods[:first_out])
    for placement in waiting:
        placement.first_token(20.0)
        placement.release(20.0)
    assert serve(router, ask(texts_apart(99)), now_s=30.0).engine.pod not in CLOUD


def test_the_cloud_serves_when_no_other_engine_is_left() -> None:
    """A penalty does not filter."""
    router = hybrid_fleet()
    for number in range(2):
        router.remove_pod(f"http://{number}")
    assert place(router, ask()).engine.pod in CLOUD


def test_a_share_leaves_early_by_the_rank_of_its_pool_and_residency_stays() -> None:
    """The pods state no rank: their pool has one. A request that may use home only is not among those that leave."""
    router = router_of(2)
    for number, url in enumerate(("http://0", "http://1", *CLOUD)):
        pod = router.fleet.pod(url)
        if pod is None:
            add_pod(router, url)
            pod = router.fleet.pod(url)
        assert pod is not None
        router.put_pod(replace(pod, pool="home" if number < 2 else "cloud", region="home" if number < 2 else "us"))
    router.fleet.rank_pools({"cloud": 1})
    model, home = ask().model, frozenset({"home"})

    def pods(share: float, regions: frozenset[str] | None = None) -> list[str]:
        router.spill_shares = {model: share} if share else {}
        requests = (struct_replace(ask(texts_apart(at)), id=f"{share}-{at}", regions=regions) for at in range(60))
        return [
            serve(router, request, now_s=1000.0 * share + 0.2 * at).engine.pod for at, request in enumerate(requests)
        ]

    assert not set(pods(0.0)) & set(CLOUD)
    some = sum(pod in CLOUD for pod in pods(0.4))
    assert 12 <= some <= 36
    assert set(pods(1.0)) <= set(CLOUD)
    assert not set(pods(1.0, home)) & set(CLOUD)
    router.fleet.rank_pools({})
    assert not router.fleet.eligible(model).spill_ranks
