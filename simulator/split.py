"""How the engines of a replay share prefill and decode: the initial roles, and which may change."""

from __future__ import annotations

from dataclasses import dataclass, field

from routing.facts import PodFacts, Role
from routing.pairing.roles import RoleTerms
from simulator.link import Link

CONNECTOR = "NixlConnector"


@dataclass(frozen=True, slots=True)
class Split:
    """`prefill` engines only prefill and all others decode; none: each may do either, and a request is prefilled
    elsewhere where that pays.
    """

    prefill: int = 0
    is_soft: bool = False
    """Roles follow the traffic."""
    is_forced: bool = False
    """Whatever can be prefilled elsewhere is."""
    shifts: tuple[tuple[float, int], ...] = ()
    """(From when, how many prefill) for one who knew beforehand; the first roles are `prefill`'s."""
    terms: RoleTerms = field(default_factory=RoleTerms)
    link: Link = field(default_factory=Link)

    def role(self, number: int) -> Role:
        """Of the engine with this number."""
        if not self.prefill:
            return Role.EITHER
        return Role.PREFILL if number < self.prefill else Role.DECODE

    def facts(self, number: int) -> PodFacts:
        """What discovery would say of its pod."""
        return PodFacts(role=self.role(number), kv_connector=CONNECTOR, kv_role="kv_both", rack="lab")
