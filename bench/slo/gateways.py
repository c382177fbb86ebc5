"""How many gateways share the engines of a run, what links them, and what happens to the link. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DELAY_S = 0.005
"""From the end of a batch until a peer applies it: a stream in Redis."""

FAULT_FROM = 0.35
"""Of the run: when the link dies or stalls."""

FAULT_S = 30.0
"""How long it does; at most `MAX_FAULT` of the run."""

MAX_FAULT = 0.4

PAUSE_S, PAUSE_EVERY_S = 0.5, 1.0
"""Of a gateway whose updates are held back again and again: just longer than what makes it a missing peer."""


class Link(StrEnum):
    """What carries updates between gateways."""

    REDIS = "redis"
    NONE = "none"
    COUNTED = "counted"
    """None, and each gateway is configured to be one of so many (`gateways`)."""
    DIES = "dies"
    """Batches are lost for `FAULT_S`."""
    STALLS = "stalls"
    """Batches are held back for `FAULT_S`, and then all delivered."""
    ONE_SIDED = "one-sided"
    """For `FAULT_S` nothing of the first gateway reaches the others; it still receives theirs."""
    PAUSES = "pauses"
    """For `FAULT_S` what the first gateway sends is held back for `PAUSE_S`, once in `PAUSE_EVERY_S`."""


@dataclass(frozen=True, slots=True)
class Gateways:
    """The gateways of a run."""

    count: int = 1
    link: Link = Link.REDIS
    first_share: float | None = None
    """Share of the requests that the first gateway receives; None where all receive the same."""
    delay_s: float = DELAY_S

    @property
    def name(self) -> str:
        """Name of its row in the table."""
        return "hearth" if self.count == 1 else f"{self.count} gateways{self.conditions}"

    @property
    def has_redis(self) -> bool:
        """Whether anything carries updates, however badly."""
        return self.link not in (Link.NONE, Link.COUNTED)

    @property
    def conditions(self) -> str:
        """What sets its row apart from others of as many gateways; empty for equal traffic on a healthy link."""
        traffic = "" if self.first_share is None else f", one has {self.first_share:.0%}"
        names = {
            Link.REDIS: "",
            Link.NONE: ", no redis",
            Link.COUNTED: ", no redis but counted",
            Link.PAUSES: ", one pauses",
        }
        link = names.get(self.link, f", redis {self.link}")
        return link + traffic

    def pick(self, draw: float) -> int:
        """Number of the gateway that receives a request, by a draw in [0, 1)."""
        if self.first_share is None:
            return int(draw * self.count)
        if draw < self.first_share:
            return 0
        return 1 + int((draw - self.first_share) / (1 - self.first_share) * (self.count - 1))


ONE = Gateways()

COUNTS = (2, 4, 16)
"""Of gateways."""

LAYOUTS = (
    ONE,
    *(
        layout
        for count in COUNTS
        for layout in (
            Gateways(count),
            Gateways(count, first_share=0.8),
            Gateways(count, Link.DIES),
            Gateways(count, Link.STALLS),
            Gateways(count, Link.ONE_SIDED),
            Gateways(count, Link.PAUSES),
            Gateways(count, Link.NONE),
            Gateways(count, Link.COUNTED),
        )
    ),
)
"""What is played of each of `SCENARIOS`."""

SCENARIOS = ("chat", "overload-2", "overload-5")
"""At once, twice and five times the best load."""


def fault_of(length_s: float) -> tuple[float, float]:
    """When the fault of a run of this length begins and ends, in seconds."""
    begins_s = FAULT_FROM * length_s
    return begins_s, begins_s + min(FAULT_S, MAX_FAULT * length_s)
