"""`MooncakeStoreConnector`: a pool of memory over hosts. The store sends KV events of its own."""

from __future__ import annotations

from routing.connectors.pooled import Pooled
from routing.connectors.shape import Terms

MOONCAKE_STORE = Pooled(Terms(names=("MooncakeStoreConnector",), is_pooled=True, both_roles=True))
