"""The connectors. A new one is one file and one line here; plug-ins register by an entry point (`gateway/pairs/`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from routing.connectors.lmcache import LMCACHE_POOL, LmCachePd
from routing.connectors.mooncake import Mooncake
from routing.connectors.multi import MultiConnector, children_of
from routing.connectors.nixl import NixlPull, NixlPush
from routing.connectors.pooled import EXAMPLE, MOONCAKE_STORE
from routing.connectors.shape import Connector
from routing.facts import PodFacts

CONNECTORS: tuple[Connector, ...] = (
    NixlPull(),
    NixlPush(),
    Mooncake(),
    MOONCAKE_STORE,
    LMCACHE_POOL,
    LmCachePd(),
    EXAMPLE,
)


def connector_of(facts: PodFacts, known: Sequence[Connector] = CONNECTORS) -> Connector | None:
    """The connector of a pod; None where it has none, or an unknown one."""
    if facts.kv_connector is None:
        return None
    if children := children_of(facts.kv_connector):
        return _multi(children, known)
    fitting = (each for each in known if facts.kv_connector in each.terms.names)
    return next((each for each in fitting if each.group(facts) is not None), None)


def compatibility_key(facts: PodFacts, connector: Connector) -> Hashable | None:
    """Equal for two pods whose engines understand each other's KV: a fact unknown of both counts as equal, a fact known
    of one only does not. None for a pod that is never paired.
    """
    group = connector.group(facts)
    if group is None:
        return None
    alike = (facts.version, facts.revision, facts.kv_dtype, facts.kv_layout, facts.block_size)
    return (connector.terms.names, group, alike)


def _multi(children: tuple[str, ...], known: Sequence[Connector]) -> Connector | None:
    found = [child for name in children for child in known if name in child.terms.names]
    speaking = [child for child in found if not child.terms.is_pooled]
    if not found or len(speaking) > 1:
        return None
    return MultiConnector(child=(speaking or found)[0], children=children)
