"""The healthy fleet of this bench: four pools, and how each of their pods is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.facts import Role
from simulator.link import Link
from simulator.profile import Profile

BLOCK = 64

CHAT = Profile(
    prefill_tokens_per_s=8_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.0004,
    max_num_batched_tokens=1_024,
    max_num_seqs=64,
    kv_capacity_tokens=96_000,
    block_size=BLOCK,
    speculative_tokens=2,
    acceptance_rate=0.7,
)
MOE = Profile(
    prefill_tokens_per_s=8_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.0004,
    max_num_batched_tokens=512,
    max_num_seqs=64,
    kv_capacity_tokens=160_000,
    block_size=BLOCK,
    speculative_tokens=6,
    acceptance_rate=0.4,
)
SPLIT = Profile(
    prefill_tokens_per_s=10_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.0004,
    max_num_batched_tokens=2_048,
    max_num_seqs=64,
    kv_capacity_tokens=160_000,
    block_size=BLOCK,
    caches_prefixes=False,
)
RAG = Profile(
    prefill_tokens_per_s=8_000.0,
    step_base_s=0.02,
    step_per_sequence_s=0.0004,
    max_num_batched_tokens=1_024,
    max_num_seqs=32,
    kv_capacity_tokens=42_048,
    block_size=BLOCK,
    host_kv_tokens=400_000,
    host_load_tokens_per_s=60_000.0,
)

LINK = Link(bytes_per_token=131_072, bytes_per_s=1.7e9, fixed_s=0.005, descriptor_tokens=128, descriptor_s=0.000_3)
NIC_GBIT_S = 16.0


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod: what it runs, and what it declares."""

    address: str
    pool: str
    profile: Profile
    role: Role = Role.EITHER
    ranks: int = 1
    link: Link = LINK
    is_chunked: bool = True
    is_coupled: bool = False
    """Expert parallelism over the ranks."""
    skew: float = 0.15
    """Share by which the busiest expert rank exceeds the mean; steps take longer by it."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """`EngineFlags` that differ from those of the profile."""
    build: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    seed_digest: str = "5eed"
    port_state: str = "active"
    metadata_service: str | None = None
    loses_fetches: int = 0
    is_stuck: bool = False
    """Transfers from this pod do not end."""
    reach_s: float = 0.0
    """Seconds that each request takes from the gateway to the pod."""


def healthy_plans() -> dict[str, PodPlan]:
    """Return the plans of all pods by address."""
    plans = [PodPlan(f"http://chat-{number}:8000", "chat", CHAT) for number in range(4)]
    plans += [PodPlan(f"http://moe-{number}:8000", "moe", MOE, ranks=2, is_coupled=True) for number in range(2)]
    plans += [PodPlan(f"http://rag-{number}:8000", "rag", RAG) for number in range(3)]
    plans += [PodPlan(f"http://split-p{number}:8000", "split", SPLIT, Role.PREFILL) for number in range(2)]
    plans += [PodPlan(f"http://split-d{number}:8000", "split", SPLIT, Role.DECODE) for number in range(3)]
    return {plan.address: plan for plan in plans}
