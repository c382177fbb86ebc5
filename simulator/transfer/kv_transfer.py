"""What one request has to do with other pods' KV. Values only: the wire format is the connectors'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wire:
    """KV that a pod holds under a name, behind its side channel."""

    host: str
    port: int
    name: str


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """KV that a pod will hold under a name; its bootstrap server says where."""

    url: str
    engine_id: str
    name: str


@dataclass(frozen=True, slots=True)
class KvFile:
    """KV in a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """`source` is where the KV of the first `remote_tokens` comes from; `held_as` the name under which another pod
    will ask for this request's KV.
    """

    remote_tokens: int = 0
    source: Wire | Bootstrap | KvFile | None = None
    held_as: str | None = None
    saves_to: Path | None = None
    is_poisoned: bool = False
    """Its parameters lack what the engine needs: it waits for ever, and kills the engine when it is given up."""
    reported_cached_tokens: int | None = None
    """What the prefilling pod found in its own cache, where the parameters tell."""


NOTHING = KvTransfer()
"""No other pod is concerned."""


class RuleBroken(Exception):  # noqa: N818 - what has happened, in one word
    """Parameters that an assertion in the engine would not have survived."""
