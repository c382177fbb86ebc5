"""Pods as values: one vLLM server with its engines and models, as last probed. Updates replace the complete value."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from routing.facts import NO_FACTS, PodFacts, Role

ProviderGrant = tuple[str, str, str]
"""What a request may leave the fleet for: provider, region, and model as it is called here."""

NO_GRANTS: frozenset[ProviderGrant] = frozenset()


class PodState(StrEnum):
    """State of a pod. Only `READY` pods are chosen; if none is left, `SUSPECT` ones."""

    STARTING = "starting"
    """It has not been probed successfully yet."""
    WARMING = "warming"
    """Healthy; hot prefixes are replayed to it before it gets requests."""
    READY = "ready"
    """It gets requests."""
    SUSPECT = "suspect"
    """Requests fail although probes succeed: it gets requests only if no other pod of the model is ready."""
    UNREADY = "unready"
    """Its probe fails, or its source reports it as not ready."""
    OPEN_CIRCUIT = "open_circuit"
    """Its circuit breaker is open: failures in a row, or a hung engine."""
    DRAINING = "draining"
    """An operator, its source or a finding drains it: running requests finish."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One scheduler with one KV cache. `slot` is its place in every per-engine list and bit mask while it lives."""

    slot: int
    pod: str
    rank: int | None = None
    """Data-parallel rank to ask for, None where the pod has a single engine."""
    role: Role = Role.EITHER
    kv_tokens: int | None = None
    """Tokens its KV cache holds, None until the pod has said so."""
    block_tokens: int | None = None
    name: str = field(init=False, repr=False, compare=False)
    """The pod's URL, with `#RANK` where there is a rank."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.pod if self.rank is None else f"{self.pod}#{self.rank}")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model as a pod lists it."""

    name: str
    root: str | None = None
    parent: str | None = None
    """The base model, where this is a LoRA adapter."""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One vLLM server behind one HTTP address, as last seen."""

    url: str
    state: PodState = PodState.STARTING
    models: frozenset[str] = frozenset()
    """Names it answers to, adapters included."""
    adapters: frozenset[str] = frozenset()
    """Those of `models` that are LoRA adapters."""
    cards: tuple[ModelCard, ...] = ()
    """The same as the pod lists them."""
    pool: str | None = None
    """The configured pool it was discovered for, where there is one."""
    region: str | None = None
    """None where unknown: then it matches no region that a request is bound to."""
    takes_priority: bool = False
    """Whether its scheduler goes by priorities; one that does not may refuse a request that has one."""
    facts: PodFacts = NO_FACTS
    """Everything else known of it."""
    engines: tuple[Engine, ...] = ()
    ready_since_s: float = 0.0
    has_reported_models: bool = True
    """Whether it has reported its models; until then it may serve any."""
    distance_s: float = 0.0
    """Seconds of a round trip to it, where it is far away."""
    provider: str | None = None
    """The provider that runs it; None for a pod of the fleet. Only requests with a grant may be sent to a provider."""

    @property
    def pool_label(self) -> str:
        """Its pool, as metrics name it: the first of its base models where it names none, empty before it reports."""
        return self.pool or min(self.models - self.adapters, default="")

    @property
    def step_group(self) -> str | None:
        """A name that all engines share that step together with its own; None where each of them steps alone."""
        if not self.facts.ep:
            return None
        return self.facts.dp_group or (self.url if len(self.engines) > 1 else None)


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What a pod says of one of its engines before a slot is given to it."""

    rank: int | None = None
    role: Role = Role.EITHER
    kv_tokens: int | None = None
    block_tokens: int | None = None
