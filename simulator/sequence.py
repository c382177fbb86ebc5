"""What goes into a simulated engine and what comes out of it. Independent of scheduling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt and how long its answer will be.

    `blocks` are chain ids of the prompt's engine blocks (equal id = equal prefix up to that block's end); with none the
    prompt is neither found in the cache nor kept there. Ids beyond the prompt's full blocks name the blocks that the
    answer fills. `answer_blocks(n)` gives the first n ids of prompt and answer together, for a caller that learns the
    answer's ids while it is made; without either they are derived from the prompt's last id.
    """

    sequence_id: str
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    priority: int = 0
    finish_reason: str = "stop"
    answer_blocks: Callable[[int], tuple[int, ...]] | None = None
    remote_tokens: int = 0
    """Leading prompt tokens whose KV another engine has computed: it is fetched into blocks taken for it beforehand."""
    is_held: bool = False
    """Its blocks stay taken after its end, for another engine to fetch, until `Engine.let_go`."""


def derived_blocks(parent: int, count: int) -> tuple[int, ...]:
    """Ids of `count` blocks behind `parent`, for answers without ids; the same for the same parent."""
    ids: list[int] = []
    for _ in range(count):
        parent = _mix(parent)
        ids.append(parent)
    return tuple(ids)


def _mix(number: int) -> int:
    """A 64-bit number that no caller's chain is likely to hold (the finaliser of splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 31)


class MilestoneKind(StrEnum):
    """What can happen to a sequence that its listener receives."""

    FIRST_TOKEN = "first_token"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Milestone:
    """A sequence got its first token, or ended. Times in engine seconds.

    `cached_tokens` is the prefix-cache hit when the sequence was first admitted; `admitted_at` is None for one
    that was aborted before. `reason` is the sequence's own finish reason or `abort`, empty at the first token.
    """

    kind: MilestoneKind
    sequence_id: str
    at: float
    output_tokens: int
    cached_tokens: int
    admitted_at: float | None
    preemptions: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A sequence has its blocks, and needs the KV of `tokens` tokens in them before it can run."""

    sequence_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step's outcome: each of `tokens` produced exactly one token when it ended."""

    at: float
    tokens: tuple[str, ...]
    milestones: tuple[Milestone, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """An engine's gauges and counters now; `kv_usage` is a fraction, counters are tokens unless they say otherwise."""

    running: int
    waiting: int
    kv_usage: float
    prefix_query_tokens: int
    prefix_hit_tokens: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    steps: int
    computed_prompt_tokens: int = 0
    """Prefilled, whether a first token came of it or not; counted as chunks end."""
    fetching: int = 0
    """How many of those waiting have their blocks and wait for another engine's KV."""
    fetched_tokens: int = 0
    """Prompt tokens whose KV came from another engine."""
    host_hit_tokens: int = 0
    """The same from the host's memory."""
    store_query_tokens: int = 0
    """Prompt tokens that were looked up there, behind what the engine's own cache had."""

    @property
    def external_tokens(self) -> int:
        """Prompt tokens whose KV a connector brought, from wherever."""
        return self.fetched_tokens + self.host_hit_tokens
