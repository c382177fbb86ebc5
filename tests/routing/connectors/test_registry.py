"""Connectors by the names that pods tell, and whose engines understand each other's KV."""

from dataclasses import replace

import pytest

from routing.connectors.registry import CONNECTORS, compatibility_key, connector_of
from routing.facts import PodFacts

NIXL = PodFacts(kv_connector="NixlConnector", kv_dtype="auto", tp=1)


@pytest.mark.parametrize(
    "name",
    [
        *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MooncakeStoreConnector"),
        *("LMCacheConnectorV1", "LMCacheMPConnector", "ExampleConnector"),
    ],
)
def test_names_are_vllms(name: str) -> None:
    """Each finds the connector that has it."""
    connector = connector_of(PodFacts(kv_connector=name))
    assert connector is not None
    assert name in connector.terms.names


def test_what_no_one_knows_pairs_with_no_one() -> None:
    """Nor a pod without a connector."""
    assert connector_of(PodFacts()) is None
    assert connector_of(PodFacts(kv_connector="HiSparseConnector")) is None
    assert connector_of(PodFacts(kv_connector="OffloadingConnector")) is None
    assert connector_of(PodFacts(kv_connector="MultiConnector(NixlConnector,MooncakeConnector)")) is None


def test_a_multi_connector_is_the_child_that_speaks() -> None:
    """With stores beside it."""
    connector = connector_of(PodFacts(kv_connector="MultiConnector(MooncakeStoreConnector,NixlConnector)"))
    assert connector is not None
    assert "NixlConnector" in connector.terms.names


def test_native_offloading_next_to_a_connector_does_not_keep_a_pod_from_pairing() -> None:
    """Its tier stays on the pod's own host; the other child hands KV over."""
    connector = connector_of(PodFacts(kv_connector="MultiConnector(OffloadingConnector,NixlConnector)"))
    assert connector is not None
    assert "NixlConnector" in connector.terms.names


@pytest.mark.parametrize("other", [{"kv_dtype": "fp8"}, {"kv_layout": "HND"}, {"block_size": 32}, {"revision": "b"}])
def test_kin_are_alike_in_all_that_shapes_kv(other: dict[str, str]) -> None:
    """What is said of one only does not match."""
    connector = connector_of(NIXL)
    assert connector is not None
    assert compatibility_key(NIXL, connector) == compatibility_key(replace(NIXL, tp=4), connector)
    assert compatibility_key(NIXL, connector) != compatibility_key(replace(NIXL, **other), connector)  # type: ignore[arg-type]


def test_a_stranger_is_found_behind_ours() -> None:
    """By the list that is given."""
    assert connector_of(NIXL, CONNECTORS[1:]) is None
