"""Stores: no words pass between the legs."""

from routing.connectors.pooled import EXAMPLE, MOONCAKE_STORE, PooledConnector
from routing.connectors.shape import ConnectorCapabilities
from routing.facts import PodFacts
from tests.routing.connectors.meetings import meeting


def test_nothing_is_sent_to_either_attempt() -> None:
    """Blocks are found by the hash of their tokens; pods of equal parallelism share a store."""
    pooled = PooledConnector(ConnectorCapabilities(names=("X",), is_pooled=True))
    assert pooled.ask(meeting()) is None
    assert pooled.hand(meeting(), {"whatever": 1}) is None
    assert pooled.group(PodFacts(tp=2)) != pooled.group(PodFacts(tp=4))


def test_mooncake_store_may_be_used_by_any_engine() -> None:
    """By the name that vLLM has for it; engines do both."""
    assert MOONCAKE_STORE.terms.names == ("MooncakeStoreConnector",)
    assert MOONCAKE_STORE.terms.is_pooled
    assert MOONCAKE_STORE.terms.supports_both_roles


def test_example_may_be_used_by_any_engine() -> None:
    """By the name that vLLM has for it; engines do both."""
    assert EXAMPLE.terms.names == ("ExampleConnector",)
    assert EXAMPLE.terms.is_pooled
    assert EXAMPLE.terms.supports_both_roles
