"""Drives vLLM's own scheduler without a model: a script of arrivals in, what each step emitted out.

Run with the Python of .venv-vllm: JSON on standard input, JSON on standard output. Imports nothing of the gateway's.
"""

import json
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

SAMPLED = 7
"""The token that every request gets in every step."""


def make_scheduler(model: str, sizes: dict[str, int], *, is_async: bool) -> Scheduler:
    block = sizes["block_size"]
    config = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=sizes["max_model_len"]),
        scheduler_config=SchedulerConfig(
            max_num_seqs=sizes["max_num_seqs"],
            max_num_batched_tokens=sizes["max_num_batched_tokens"],
            max_model_len=sizes["max_model_len"],
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=is_async,
        ),
        cache_config=CacheConfig(block_size=block, enable_prefix_caching=True),
    )
    blocks = sizes["blocks"] + 1  # vLLM keeps one for itself.
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=16, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return (AsyncScheduler if is_async else Scheduler)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        hash_block_size=block,
        log_stats=True,
    )


def play(
    model: str, sizes: dict[str, int], arrivals: list[dict[str, Any]], *, is_async: bool = False
) -> dict[str, Any]:
    """Play steps until all have ended: per step whose tokens left, per request cached tokens and preemptions.

    Asynchronous, a step is planned before the outputs of the one before are handed in, as `EngineCore` does.
    """
    scheduler = make_scheduler(model, sizes, is_async=is_async)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(sizes["block_size"], sha256)
    waiting = sorted(arrivals, key=lambda one: one["step"])
    steps: list[list[str]] = []
    requests: dict[str, Request] = {}
    cached: dict[str, int] = {}
    in_flight: list[tuple[SchedulerOutput, ModelRunnerOutput]] = []

    def hand_in() -> list[str]:
        """Give the scheduler the oldest outputs; return who got a token."""
        planned, output = in_flight.pop(0)
        scheduler.update_from_output(planned, output)
        return [name for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True) if tokens]

    number = 0
    while waiting or in_flight or scheduler.has_requests():
        while waiting and waiting[0]["step"] <= number:
            one = waiting.pop(0)
            params = SamplingParams(max_tokens=one["output"], ignore_eos=True)
            params.update_from_generation_config({}, eos_token_id=0)
            request = Request(
                one["id"], one["prompt"], params, None, arrival_time=float(len(requests)), block_hasher=hasher
            )
            requests[one["id"]] = request
            scheduler.add_request(request)
        number += 1
        if not scheduler.has_requests():
            steps.append(hand_in() if in_flight else [])
            continue
        planned = scheduler.schedule()
        if not planned.num_scheduled_tokens and in_flight:
            steps.append(hand_in())
            continue
        for new in planned.scheduled_new_reqs:
            cached.setdefault(new.req_id, new.num_computed_tokens)
        ids = list(planned.num_scheduled_tokens)
        sampled = [[] if requests[name].is_prefill_chunk else [SAMPLED] for name in ids]
        output = ModelRunnerOutput(ids, {name: place for place, name in enumerate(ids)}, sampled)
        in_flight.append((planned, output))
        steps.append(hand_in() if len(in_flight) > is_async else [])
    return {
        "steps": [sorted(names) for names in steps],
        "cached": cached,
        "preemptions": {name: request.num_preemptions for name, request in requests.items()},
    }


def main() -> None:
    order = json.load(sys.stdin)
    results = [play(order["model"], **one) for one in order["plays"]]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
