"""Engine profiles computed from public figures of accelerators and models: a roofline, for hardware not at hand.

    python -m simulator.computed [FOLDER]

writes one file per pair into FOLDER (default: `profiles` beside this module, which is where they ship). What they
predict is `unverified on this hardware`; `hearth profile` on a real pod replaces them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.engine_profile import COMPUTED, UNVERIFIED_SPREAD, EngineProfile, dump_engine_profile
from simulator.profile import Profile

FOLDER = Path(__file__).with_name("profiles")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One card, by its vendor's data sheet: memory bytes, bytes/s, dense FP8 operations/s."""

    name: str
    memory: float
    bandwidth: float
    fp8_flops: float


@dataclass(frozen=True, slots=True)
class Model:
    """One model with FP8 weights and BF16 KV, by its public configuration."""

    name: str
    parameters: float
    active: float
    kv_layers: int
    """Layers that keep KV for each token."""
    kv_heads: int
    query_heads: int
    head_size: int
    block_size: int
    """Tokens of a block: hybrid models have large ones."""
    experts: int = 1
    experts_per_token: int = 1


ACCELERATORS = (
    Accelerator("H100", 80e9, 3.35e12, 1_979e12),
    Accelerator("H200", 141e9, 4.8e12, 1_979e12),
    Accelerator("B200", 180e9, 8.0e12, 4_500e12),
)

MODELS = (
    Model("Qwen3.6-27B", 27e9, 27e9, 16, 4, 24, 256, 784),
    Model("Qwen3.5-35B-A3B", 35e9, 3e9, 10, 2, 16, 256, 1_056, experts=256, experts_per_token=8),
)

BANDWIDTH_SHARE = 0.7
FLOPS_SHARE = 0.4
"""Of the data sheet's figures, as engines usually reach them."""

STEP_OVERHEAD_S = 0.003
"""Scheduling, launching and sampling of a step."""

SEQUENCE_S = 0.000_02
"""The same for each sequence of it."""

REQUEST_S, REQUEST_TOKEN_S = 0.003, 0.000_002
"""Of the API server: parsing, templating, tokenising."""

MEMORY_SHARE, WORKING_BYTES = 0.92, 5e9
"""vLLM's default of what it takes, and activations and graphs."""

STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 8_192)

MAX_NUM_SEQS = 256

NOTES = (
    (
        f"{BANDWIDTH_SHARE:.0%} of the data sheet's bandwidth, {FLOPS_SHARE:.0%} of its FP8 rate and "
        f"{STEP_OVERHEAD_S * 1000:g} ms a step are assumed."
    ),
    "State of linear layers and speculation are not counted.",
)


def compute(card: Accelerator, model: Model) -> EngineProfile:
    """Return the profile of one card with one model."""
    kv_bytes = 2 * model.kv_layers * model.kv_heads * model.head_size * 2
    flops_s = 1.0 / (card.fp8_flops * FLOPS_SHARE)
    bytes_s = 1.0 / (card.bandwidth * BANDWIDTH_SHARE)
    token_flops = 2 * model.active
    # Scores and their sum: two products of two operations for each head, dimension, layer and token before.
    pair_flops = 4 * model.kv_layers * model.query_heads * model.head_size
    table = tuple(
        (tokens, STEP_OVERHEAD_S + max(weights_read(model, tokens) * bytes_s, tokens * token_flops * flops_s))
        for tokens in STEP_TOKENS
    )
    capacity = (card.memory * MEMORY_SHARE - model.parameters - WORKING_BYTES) / kv_bytes
    return EngineProfile(
        engine=Profile(
            prefill_tokens_per_s=1.0 / (token_flops * flops_s),
            prefill_quadratic_tokens=token_flops / pair_flops,
            step_base_s=table[0][1],
            step_per_sequence_s=SEQUENCE_S,
            step_per_kv_token_s=kv_bytes * bytes_s,
            max_num_batched_tokens=STEP_TOKENS[-1],
            max_num_seqs=MAX_NUM_SEQS,
            kv_capacity_tokens=int(capacity) // model.block_size * model.block_size,
            block_size=model.block_size,
            step_table=table,
            request_s=REQUEST_S,
            request_token_s=REQUEST_TOKEN_S,
            # vLLM's default where the model runs on an accelerator.
            async_scheduling=True,
        ),
        source=COMPUTED,
        hardware=card.name,
        model=f"{model.name}, FP8 weights, BF16 KV",
        spread={"assumed": UNVERIFIED_SPREAD},
        notes=NOTES,
    )


def weights_read(model: Model, tokens: int) -> float:
    """Return the bytes of weights that a step of so many tokens reads: of experts, those that some token is sent to."""
    if model.experts == 1:
        return model.parameters
    share = model.experts_per_token / model.experts
    # What every token needs: active = common + share of the experts, parameters = common + all experts.
    common = (model.active - share * model.parameters) / (1.0 - share)
    return common + (model.parameters - common) * (1.0 - (1.0 - share) ** tokens)


def file_name(card: Accelerator, model: Model) -> str:
    """Return where the pair's profile stands."""
    return f"{card.name.lower()}-{model.name.lower()}.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all files."""
    words = sys.argv[1:] if arguments is None else arguments
    folder = Path(words[0]) if words else FOLDER
    for card in ACCELERATORS:
        for model in MODELS:
            (folder / file_name(card, model)).write_text(dump_engine_profile(compute(card, model)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
