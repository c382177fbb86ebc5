"""Canaries whose pods prefill or decode for others, as far as the configuration tells: such trials have no verdict."""

from __future__ import annotations

from gateway.config.values import Settings
from routing.canary import Canary
from routing.facts import Role
from tenancy.document import Fault


def split_canaries(settings: Settings) -> list[Fault]:
    """Name every pod that has a role and would be on trial."""
    known = [(found.url, found.pool, found.facts) for found in settings.static_pods]
    known += [(place.name, place.pool, place.facts) for place in settings.places.dns]
    faults = []
    for at, terms in enumerate(settings.canaries):
        canary = Canary(terms)
        for name, pool, facts in known:
            if facts.duty is not Role.EITHER and canary.has(pool, facts.revision):
                words = f"`{terms.name}`: {name} has role `{facts.duty}`; pods on trial must serve whole requests"
                faults.append(Fault(f"canaries[{at}]", f"{words} (role `either`)"))
    return faults
