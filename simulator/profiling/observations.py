"""What is seen of an engine from outside, each as numbers that a model of its steps can be fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import msgspec

from simulator.link import Link


@dataclass(frozen=True, slots=True)
class Speculation:
    """What an engine drafts, by its counters."""

    tokens: int
    """For each sequence in each step."""
    acceptance_rate: float
    """Of a drafted token, on condition that those before it were accepted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of an engine. `max_num_batched_tokens` is how many tokens a step takes at most."""

    block_size: int
    kv_blocks: int
    """Usable ones; vLLM keeps one of those it reports for itself."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    caches_prefixes: bool = True
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class IdlePrefill:
    """A prompt of `tokens` uncached tokens, alone on the engine. `engine_s` is None where no metric shows it."""

    tokens: int
    client_s: float
    """From sending to the first token."""
    engine_s: float | None
    """From scheduling to the first token, by the engine's own histograms."""


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Steps in which only `sequences` decode, with `kv_tokens` tokens of KV together on average."""

    sequences: int
    kv_tokens: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Intrusion:
    """A prompt of which `tokens` are computed (and `cached` are not) beside `sequences` that decode."""

    sequences: int
    kv_tokens: float
    tokens: int
    cached: int
    extra_s: float
    """How much later the decoding ones had their tokens than without it."""
    client_s: float
    """From sending to the first token."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was observed of one engine."""

    shape: Shape
    idle: tuple[IdlePrefill, ...] = ()
    decode: tuple[DecodeSteps, ...] = ()
    intrusions: tuple[Intrusion, ...] = ()
    link: Link | None = None
    """What transfers of KV took so far, by the engine's counters."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Model, versions and the like, as the engine reports them."""

    def to_json(self) -> bytes:
        """Return it as JSON, for a later fit."""
        return msgspec.json.encode(asdict(self))

    @staticmethod
    def from_json(text: bytes) -> Seen:
        """Read what `to_json` wrote. Raises `msgspec.ValidationError` where it is something else."""
        return msgspec.json.decode(text, type=Seen)


def pooled(one: Seen, other: Seen) -> Seen:
    """Return all observations of the same engine at two times; sizes and facts are those of the first."""
    return replace(
        one,
        idle=one.idle + other.idle,
        decode=one.decode + other.decode,
        intrusions=one.intrusions + other.intrusions,
        link=other.link or one.link,
    )


def chunks_of(computed: int, cached: int, room: int) -> Iterator[tuple[int, int]]:
    """Split a prompt's uncached tokens into (tokens before, tokens) by steps that have room for so many."""
    start, left = cached, computed
    while left > 0:
        tokens = min(left, room)
        yield start, tokens
        start, left = start + tokens, left - tokens
