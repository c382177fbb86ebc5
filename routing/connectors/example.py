"""`ExampleConnector`: a shared folder, keyed by all full blocks of a prompt. For trials, and our tests."""

from __future__ import annotations

from routing.connectors.pooled import Pooled
from routing.connectors.shape import Terms

EXAMPLE = Pooled(Terms(names=("ExampleConnector",), is_pooled=True, both_roles=True))
