"""Pods with NixlConnector: the wire shape of vLLM, leases, and what goes wrong."""

from __future__ import annotations

import asyncio

import pytest

from simulator.faults import Fault, FaultKind
from tests.simulator.asking import PATIENCE_S
from tests.simulator.transfer.pairs import ASKED, CHAT, Pair, alone, paired, stated


async def used(pair: Pair) -> float:
    """How full the prefilling pod's cache is with what is taken."""
    return pair.prefill_pod.engines[0].statistics().kv_usage


async def until_free(pair: Pair) -> None:
    """The prefilling pod holds nothing more."""
    async with asyncio.timeout(PATIENCE_S):
        while await used(pair):
            await pair.prefill.get("/health")


async def test_a_pair_says_what_one_pod_says() -> None:
    """The prompt is computed once: all of it is fetched, and then nobody holds it."""
    async with paired() as pair:
        params = await pair.hand_over()
        assert params["remote_port"] == pair.prefill_pod.service.transfers.side_channel.port  # type: ignore[union-attr]
        assert await used(pair) > 0
        answer = await pair.decode.ask(CHAT, {**ASKED, "kv_transfer_params": params})
        assert stated(answer) == await alone()
        assert answer["kv_transfer_params"] is None
        assert await pair.fetched_tokens() == params["remote_num_tokens"]
        assert pair.decode_pod.engines[0].statistics().computed_prompt_tokens == 1
        await until_free(pair)
        assert await pair.prefill.metric("nixl_xfer_time_seconds_count") == 1


async def test_only_what_is_not_there_is_fetched_again() -> None:
    """A prompt's second answer fetches less than a block, and tells the prefilling pod's hit as its own."""
    async with paired() as pair:
        for turn in range(2):
            params = await pair.hand_over()
            answer = await pair.decode.ask(CHAT, {**ASKED, "kv_transfer_params": params})
            details = answer["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == params["remote_prefill_cached_tokens"]
            assert (params["remote_prefill_cached_tokens"] > 0) is (turn == 1)
        assert await pair.fetched_tokens() <= params["remote_num_tokens"] + 16


async def test_a_lease_ends() -> None:
    """Nobody comes: the blocks are free again, and it is counted. Who comes after that does not notice."""
    async with paired(lease_s=1.0) as pair:
        params = await pair.hand_over()
        await until_free(pair)
        assert await pair.prefill.metric("nixl_num_kv_expired_reqs_total") == 1
        await pair.decode.ask(CHAT, {**ASKED, "kv_transfer_params": params})
        assert await pair.prefill.metric("nixl_num_notifications_after_expiry_total") == 1


@pytest.mark.parametrize("recomputes", [False, True], ids=["fail", "recompute"])
async def test_a_dead_prefilling_pod(recomputes: bool) -> None:
    """It is tried for as long as a handshake may take, and then the request fails or is computed here."""
    async with paired(recomputes=recomputes) as pair:
        params = await pair.hand_over()
        pair.prefill_pod.set_fault(Fault(FaultKind.DIE))
        answer = await pair.decode.post(CHAT, {**ASKED, "kv_transfer_params": params})
        assert answer.status == (200 if recomputes else 500)
        if recomputes:
            assert stated(answer.json()) == await alone()
            assert await pair.fetched_tokens() == 0
        else:
            assert (await pair.decode.get("/health")).status == 200


async def test_a_stalled_transfer_hangs_its_request_only() -> None:
    """The answer does not come; others are answered, and whoever gives up leaves nothing behind."""
    async with paired() as pair:
        params = await pair.hand_over()
        pair.prefill_pod.set_fault(Fault(FaultKind.STALL))
        waiting = asyncio.create_task(pair.decode.post(CHAT, {**ASKED, "kv_transfer_params": params}))
        async with asyncio.timeout(PATIENCE_S):
            while not pair.decode_pod.engines[0].statistics().fetching:
                await pair.decode.get("/health")
        assert stated(await pair.decode.ask(CHAT, ASKED)) == await alone()
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(PATIENCE_S):
            await pair.decode_pod.service.idle()
        assert pair.decode_pod.engines[0].statistics().kv_usage == 0


async def test_poisoned_parameters_kill_the_engine() -> None:
    """What vLLM does not check: the request hangs, and when its client goes the engine is dead."""
    async with paired() as pair:
        params = await pair.hand_over()
        del params["remote_request_id"]
        waiting = asyncio.create_task(pair.decode.post(CHAT, {**ASKED, "kv_transfer_params": params}))
        async with asyncio.timeout(PATIENCE_S):
            while not pair.decode_pod.engines[0].statistics().fetching:
                await pair.decode.get("/health")
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(PATIENCE_S):
            while (await pair.decode.get("/health")).status == 200:
                pass
        assert (await pair.decode.post(CHAT, ASKED)).status == 500


async def test_a_client_that_leaves_a_prefill_leaves_nothing() -> None:
    """An aborted prefill holds no blocks."""
    async with paired() as pair:
        pair.prefill_pod.set_fault(Fault(FaultKind.HANG))
        waiting = asyncio.create_task(pair.hand_over())
        async with asyncio.timeout(PATIENCE_S):
            while not pair.prefill_pod.service.in_flight:
                await pair.prefill.get("/health")
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(PATIENCE_S):
            while pair.prefill_pod.service.in_flight:
                await pair.prefill.get("/health")
        pair.prefill_pod.set_fault(Fault(FaultKind.NONE))
        await until_free(pair)
