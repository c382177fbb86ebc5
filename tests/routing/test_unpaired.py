"""Prefill pods that no connector can use, and what is reported as the reason."""

from dataclasses import replace

import pytest

from routing.facts import PodFacts, Role
from routing.router import Router
from routing.unpaired import Unpaired, unpaired
from tests.routing.test_pairing import NIXL, put, split_fleet

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
        (replace(PREFILL, kv_connector=None), [DECODE], Unpaired.NO_CONNECTOR),
        (replace(PREFILL, kv_connector="AnotherConnector"), [DECODE], Unpaired.UNFIT_CONNECTOR),
        (replace(PREFILL, kv_role="kv_consumer"), [DECODE], Unpaired.UNFIT_CONNECTOR),
        (PREFILL, [], Unpaired.NO_DECODE_POD),
        (PREFILL, [PREFILL], Unpaired.NO_DECODE_POD),
        (PREFILL, [replace(DECODE, revision="v2")], Unpaired.NO_PARTNER),
        (PREFILL, [replace(DECODE, kv_role="kv_producer")], Unpaired.NO_PARTNER),
        (replace(NIXL, role=Role.EITHER, kv_connector=None), [], None),
    ],
)
def test_each_reason(prefill: PodFacts, others: list[PodFacts], why: Unpaired | None) -> None:
    """Of one prefill pod beside others; pods that answer themselves are never reported."""
    assert unpaired(fleet_of(prefill, *others).fleet).get("http://p") == why


def test_pods_of_other_models_are_no_partners() -> None:
    """A decode pod that serves something else does not help."""
    router = fleet_of(PREFILL, DECODE)
    pod = router.fleet.pod("http://o0")
    assert pod is not None
    router.put_pod(replace(pod, models=frozenset({"another"})))
    assert unpaired(router.fleet) == {"http://p": Unpaired.NO_DECODE_POD}
