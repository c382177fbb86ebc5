"""Who may pair with whom, found once per change of the fleet."""

from dataclasses import replace

import pytest

from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pairing.links import Link
from routing.pairing.partners import Partners, UnpairedReason, decoding_pods, find_partners, unpaired
from tests.routing.pairing.test_pairing import MODEL, NIXL, put, split_fleet


def partners_of(router: Router) -> Partners:
    """All partners of a fleet."""
    fleet = router.fleet
    return find_partners(fleet, fleet.eligible(MODEL), fleet.eligible_prefill(MODEL))


def test_engines_meet_in_circles_nearest_first() -> None:
    """On the host, in the zone, anywhere; a circle in which nobody prefills is none."""
    router = split_fleet(0, 0)
    put(router, "http://p", replace(NIXL, role=Role.PREFILL, host="a", zone="z"))
    put(router, "http://near", replace(NIXL, role=Role.DECODE, host="a", zone="z"))
    put(router, "http://far", replace(NIXL, role=Role.DECODE, host="b", zone="y"))
    found = partners_of(router)
    links = {
        engine.pod: [each.link for each in found.decoding[engine.slot]]
        for engine in router.fleet.eligible(MODEL).engines
    }
    assert links == {"http://near": [Link.HOST, Link.ZONE, Link.FAR], "http://far": [Link.FAR]}


def test_consumers_prefill_for_no_one_and_producers_answer_for_no_one() -> None:
    """Whatever role they are said to have."""
    router = split_fleet(0, 0)
    put(router, "http://c", replace(NIXL, role=Role.EITHER, kv_role="kv_consumer"))
    put(router, "http://p", replace(NIXL, role=Role.EITHER, kv_role="kv_producer"))
    found = partners_of(router)
    assert [found.facts[slot].kv_role for slot in found.prefilling] == ["kv_producer"]
    assert [found.facts[slot].kv_role for slot, circles in found.decoding.items() if circles] == ["kv_consumer"]


def test_the_router_finds_them_again_when_the_fleet_changes() -> None:
    """And only then."""
    router = split_fleet(1, 1)
    before = router.pairing.partners(MODEL, None)
    assert router.pairing.partners(MODEL, None) is before
    put(router, "http://p9", replace(NIXL, role=Role.PREFILL))
    assert len(router.pairing.partners(MODEL, None).prefilling) == 2


PREFILL, DECODE = replace(NIXL, role=Role.PREFILL), replace(NIXL, role=Role.DECODE)


def fleet_of(prefill: PodFacts, *others: PodFacts) -> Router:
    router = split_fleet(0, 0)
    put(router, "http://p", prefill)
    for number, facts in enumerate(others):
        put(router, f"http://o{number}", facts)
    return router


@pytest.mark.parametrize(
    ("prefill", "others", "why"),
    [
        (PREFILL, [DECODE], None),
        (PREFILL, [replace(NIXL, role=Role.EITHER)], None),
        (replace(PREFILL, kv_connector=None), [DECODE], UnpairedReason.NO_CONNECTOR),
        (replace(PREFILL, kv_connector="AnotherConnector"), [DECODE], UnpairedReason.UNFIT_CONNECTOR),
        (replace(PREFILL, kv_role="kv_consumer"), [DECODE], UnpairedReason.UNFIT_CONNECTOR),
        (PREFILL, [], UnpairedReason.NO_DECODE_POD),
        (PREFILL, [PREFILL], UnpairedReason.NO_DECODE_POD),
        (PREFILL, [replace(DECODE, revision="v2")], UnpairedReason.NO_PARTNER),
        (PREFILL, [replace(DECODE, kv_role="kv_producer")], UnpairedReason.NO_PARTNER),
        (replace(NIXL, role=Role.EITHER, kv_connector=None), [], None),
    ],
)
def test_each_reason(prefill: PodFacts, others: list[PodFacts], why: UnpairedReason | None) -> None:
    """Of one prefill pod beside others; pods that answer themselves are never reported."""
    assert unpaired(fleet_of(prefill, *others).fleet).get("http://p") == why


def test_a_revision_with_the_same_weights_pairs() -> None:
    """Where the fleet knows that its pods hold the weights of the other; decode pods are found the same way."""
    router = fleet_of(PREFILL, replace(DECODE, revision="v1"), replace(DECODE, revision="v2"))
    assert decoding_pods(router.fleet) == frozenset()
    router = fleet_of(replace(PREFILL, revision="v2"), replace(DECODE, revision="v1"), replace(DECODE, revision="v3"))
    assert unpaired(router.fleet) == {"http://p": UnpairedReason.NO_PARTNER}
    router.fleet.revision_aliases = {"v2": "v1"}
    assert unpaired(router.fleet) == {}
    assert decoding_pods(router.fleet) == {"http://o0"}


def test_pods_of_other_models_are_no_partners() -> None:
    """A decode pod that serves something else does not help."""
    router = fleet_of(PREFILL, DECODE)
    pod = router.fleet.pod("http://o0")
    assert pod is not None
    router.put_pod(replace(pod, models=frozenset({"another"})))
    assert unpaired(router.fleet) == {"http://p": UnpairedReason.NO_DECODE_POD}
