"""MooncakeStoreConnector: a store like others."""

from routing.connectors.mooncake_store import MOONCAKE_STORE


def test_it_is_a_store_that_any_engine_may_use() -> None:
    """By the name that vLLM has for it; engines do both."""
    assert MOONCAKE_STORE.terms.names == ("MooncakeStoreConnector",)
    assert MOONCAKE_STORE.terms.is_pooled
    assert MOONCAKE_STORE.terms.both_roles
