"""The list of recipes. A new one is a file beside this one and a line here."""

from __future__ import annotations

from diagnosis.finding import Severity
from diagnosis.recipe import Recipe
from diagnosis.recipes import (
    acceptance_decayed,
    api_server_bound,
    chunked_prefill_off,
    clocks_apart,
    coarse_chunks,
    constrained_on_speculating,
    decode_starved_by_prefill,
    dp_rank_stalled,
    engine_stalled,
    feature_without_flag,
    gateway_saturated,
    hot_expert,
    idle_ranks,
    kv_pressure,
    late_to_engine,
    prefill_pool_unused,
    prefix_cache_off,
    prefix_cache_thrashing,
    rdma_port_down,
    redis_slow,
    salts_split_prefixes,
    single_service,
    slow_transfers,
    slower_than_peers,
    speculation_on_saturated_batch,
    store_without_use,
    tcp_fallback,
    transfer_queue,
    transfers_failing,
    transfers_stalled,
    uncollated_transfers,
    unlike_builds,
    unlike_hashing,
    unlike_kernels,
    unlike_kv_formats,
    unlike_limits,
    unlike_models,
)

RECIPES: tuple[Recipe, ...] = (
    engine_stalled.RECIPE,
    dp_rank_stalled.RECIPE,
    transfers_failing.RECIPE,
    transfers_stalled.RECIPE,
    kv_pressure.RECIPE,
    chunked_prefill_off.RECIPE,
    coarse_chunks.RECIPE,
    decode_starved_by_prefill.RECIPE,
    hot_expert.RECIPE,
    idle_ranks.RECIPE,
    api_server_bound.RECIPE,
    late_to_engine.RECIPE,
    transfer_queue.RECIPE,
    slow_transfers.RECIPE,
    tcp_fallback.RECIPE,
    rdma_port_down.RECIPE,
    uncollated_transfers.RECIPE,
    single_service.RECIPE,
    acceptance_decayed.RECIPE,
    constrained_on_speculating.RECIPE,
    speculation_on_saturated_batch.RECIPE,
    prefix_cache_off.RECIPE,
    prefix_cache_thrashing.RECIPE,
    salts_split_prefixes.RECIPE,
    store_without_use.RECIPE,
    prefill_pool_unused.RECIPE,
    unlike_hashing.RECIPE,
    unlike_builds.RECIPE,
    unlike_kernels.RECIPE,
    unlike_kv_formats.RECIPE,
    unlike_models.RECIPE,
    unlike_limits.RECIPE,
    gateway_saturated.RECIPE,
    redis_slow.RECIPE,
    clocks_apart.RECIPE,
    feature_without_flag.RECIPE,
    slower_than_peers.RECIPE,
)
"""In the order in which equally ranked findings are shown."""

BY_NAME = {recipe.name: recipe for recipe in RECIPES}

DRAINABLE = tuple(
    recipe.name for recipe in RECIPES if not recipe.depends_on_requests and recipe.severity is not Severity.ADVICE
)
"""Those for whose findings a pod may be drained: no tenant's requests bring their evidence about."""
