"""What an engine's own metrics say of the time that a route log covers: means of its histograms, and its sizes.

Pure: expositions in, numbers out. A pod that serves no `vllm:` histograms gives nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.link import Link
from simulator.profile import Profile
from simulator.profiling.observations import Speculation
from simulator.profiling.pod_client import labels_of, sums_of

CACHE_CONFIG = "vllm:cache_config_info{"


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Means over requests in seconds, None where the engine did not say; source: vLLM's `request_*_time_seconds`."""

    queue_s: float | None = None
    """From the API server's hand-over to scheduling."""
    prefill_s: float | None = None
    """From scheduling to the first token."""
    decode_s: float | None = None
    """Of one token behind the first."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known."""
        return self == EngineTimes()


def engine_times(after: Sequence[str], before: Sequence[str] = ()) -> EngineTimes:
    """Return the means between two scrapes of the same engines; without the first since the engines began."""
    end, start = _summed(after), _summed(before)

    def mean(name: str) -> float | None:
        count = end.get(f"vllm:{name}_count", 0.0) - start.get(f"vllm:{name}_count", 0.0)
        seconds = end.get(f"vllm:{name}_sum", 0.0) - start.get(f"vllm:{name}_sum", 0.0)
        return seconds / count if count > 0 and seconds > 0 else None

    return EngineTimes(
        mean("request_queue_time_seconds"), mean("request_prefill_time_seconds"), mean("inter_token_latency_seconds")
    )


def sized(profile: Profile, exposition: str) -> Profile:
    """Return a profile with the block size and KV capacity of `vllm:cache_config_info`, unchanged without it."""
    labels = next((labels_of(line) for line in exposition.splitlines() if line.startswith(CACHE_CONFIG)), {})
    try:
        block, blocks = int(float(labels["block_size"])), int(float(labels["num_gpu_blocks"]))
    except (KeyError, ValueError):
        return profile
    # vLLM keeps one for itself.
    return replace(profile, block_size=block, kv_capacity_tokens=max(blocks - 1, 1) * block)


def link_of(after: Sequence[str], before: Sequence[str] = ()) -> Link | None:
    """Return what transfers of KV took by NIXL's counters; None where there were none.

    Bytes for a token are those that came by the prompt tokens that came from other engines.
    """
    end, start = _summed(after), _summed(before)

    def grown(name: str) -> float:
        return end.get(f"vllm:{name}", 0.0) - start.get(f"vllm:{name}", 0.0)

    transfers, moved = grown("nixl_xfer_time_seconds_count"), grown("nixl_bytes_transferred_sum")
    seconds, tokens = grown("nixl_xfer_time_seconds_sum"), _transferred_tokens(after) - _transferred_tokens(before)
    if transfers <= 0 or moved <= 0 or seconds <= 0 or tokens <= 0:
        return None
    fixed_s = grown("nixl_post_time_seconds_sum") / transfers
    return Link(max(round(moved / tokens), 1), moved / seconds, max(fixed_s, 0.0))


def speculation_of(exposition: str) -> Speculation | None:
    """Return what an engine drafted since it began, and how much of it was accepted; None where it drafts nothing.

    What is accepted depends on the text: the counters of an engine that has served its own traffic are those to use.
    """
    sums = sums_of(exposition)
    drafts = sums.get("vllm:spec_decode_num_drafts_total", 0.0)
    if drafts <= 0:
        return None
    tokens = max(round(sums.get("vllm:spec_decode_num_draft_tokens_total", 0.0) / drafts), 1)
    accepted = sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0) / drafts
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**place for place in range(1, tokens + 1)) < accepted:
            low = middle
        else:
            high = middle
    return Speculation(tokens, high)


def _summed(expositions: Sequence[str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for text in expositions:
        for name, value in sums_of(text).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _transferred_tokens(expositions: Sequence[str]) -> float:
    """Prompt tokens whose KV came from another engine."""
    name, source = "vllm:prompt_tokens_by_source_total{", 'source="external_kv_transfer"'
    lines = (line for text in expositions for line in text.splitlines())
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and source in line)
