"""What can be made to go wrong with a simulated pod, on command. Independent of how a pod does it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class FaultKind(StrEnum):
    """How a pod fails."""

    NONE = "none"
    DIE = "die"
    """Every connection closes and nothing listens any more; a pod that is a command exits."""
    FREEZE = "freeze"
    """Nothing listens any more, and what is open gets no further byte and no end: vLLM told to stop under load."""
    HANG = "hang"
    """The engine stops stepping; the HTTP server goes on, and /health says 200."""
    SLOW = "slow"
    """The engine takes `factor` times as long."""
    CUT = "cut"
    """Streams are closed without an end after `after_chunks` events."""
    RESET = "reset"
    """The same, as a lost machine does it: the other side hears that the connection is broken."""
    MUTE = "mute"
    """Streams fall silent after `after_chunks` events and stay open; nothing else is wrong."""
    DAMAGE = "damage"
    """One event after `after_chunks` cannot be read, or with `spot: frame` not even its chunk."""
    ABORT = "abort"
    """Answers end after `after_chunks` tokens because the engine aborted them: well framed, not finished."""
    DROP = "drop"
    """Connections are closed instead of being answered."""
    REJECT = "refuse"
    """503, the engine is busy."""
    ERROR = "error"
    """500, the engine had an issue; nothing else suffers."""
    CRASH = "crash"
    """The engine is dead behind a living server: streams end with an error event, then 500, /health says 503."""
    STALL = "stall"
    """Fetches of KV from here stall; all else goes on."""
    UNREADY = "unready"
    """/health says 503; requests are still answered."""


class Spot(StrEnum):
    """Where within a stream it happens."""

    BETWEEN = "between"
    """Between two events."""
    EVENT = "event"
    """In the middle of one."""
    CHARACTER = "character"
    """In the middle of a character of several bytes, as soon as there is one."""
    FRAME = "frame"
    """In HTTP's own chunk around an event."""


LASTING = frozenset(
    {
        FaultKind.DIE,
        FaultKind.FREEZE,
        FaultKind.HANG,
        FaultKind.SLOW,
        FaultKind.CRASH,
        FaultKind.STALL,
        FaultKind.UNREADY,
    }
)
"""These are states of the pod; the others happen to requests and can be counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from now on. `requests` says how many requests it affects; None until it is removed."""

    kind: FaultKind = FaultKind.NONE
    factor: float = 1.0
    after_chunks: int = 0
    requests: int | None = None
    spot: Spot = Spot.BETWEEN
    """For faults of streams."""
    is_late: bool = False
    """A stream is refused, or hears of an error, only after its head, as its first event."""

    def __post_init__(self) -> None:
        if self.factor <= 0:
            raise ValueError("factor: must be > 0")
        if self.after_chunks < 0:
            raise ValueError("after_chunks: must be >= 0")
        if self.requests is not None and (self.requests < 1 or self.kind in LASTING):
            raise ValueError(f"requests: must be >= 1, and {self.kind} is a state of the pod, not of a request")


NO_FAULT = Fault()


class Trouble:
    """The current fault, and how many requests it has left to affect."""

    def __init__(self) -> None:
        self.fault = NO_FAULT
        self._left: int | None = None

    def begin(self, fault: Fault) -> None:
        """From now on."""
        self.fault = fault
        self._left = fault.requests

    def befall(self) -> Fault:
        """What goes wrong with the request that has just come; it counts."""
        fault = self.fault
        if fault.kind in LASTING or self._left is None:
            return fault
        self._left -= 1
        if self._left == 0:
            self.begin(NO_FAULT)
        return fault


def parse_fault(order: Any) -> Fault:
    """A fault from its JSON form, `{"kind": "cut", "after_chunks": 3}`.

    Raises ValueError or TypeError that says what is wrong.
    """
    if not isinstance(order, dict):
        raise TypeError("a fault is an object with a kind")
    unknown = order.keys() - {field.name for field in fields(Fault)}
    if unknown:
        raise ValueError(f"{min(unknown)}: unknown")
    if order.get("kind") not in set(FaultKind):
        raise ValueError(f"kind: must be one of {', '.join(FaultKind)}")
    if not isinstance(order.get("is_late", False), bool):
        raise TypeError("is_late: must be true or false")
    if order.get("spot", Spot.BETWEEN) not in set(Spot):
        raise ValueError(f"spot: must be one of {', '.join(Spot)}")
    for name in order.keys() - {"kind", "spot", "is_late"}:
        is_number = isinstance(order[name], int) or (name == "factor" and isinstance(order[name], float))
        if not is_number or isinstance(order[name], bool):
            raise TypeError(f"{name}: must be a number")
    return Fault(**{**order, "kind": FaultKind(order["kind"]), "spot": Spot(order.get("spot", Spot.BETWEEN))})
