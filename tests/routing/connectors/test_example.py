"""ExampleConnector: a store like others."""

from routing.connectors.example import EXAMPLE


def test_it_is_a_store_that_any_engine_may_use() -> None:
    """By the name that vLLM has for it; engines do both."""
    assert EXAMPLE.terms.names == ("ExampleConnector",)
    assert EXAMPLE.terms.is_pooled
    assert EXAMPLE.terms.both_roles
