"""Pods with MooncakeConnector: a bootstrap server, names of transfers, both legs at once, roles asserted."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from tests.simulator.transfer.pairs import ASKED, CHAT, Pair, alone, paired, stated

MOONCAKE = "MooncakeConnector"


async def legs(pair: Pair, transfer: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is sent to the two pods."""
    async with aiohttp.ClientSession() as client, client.get(f"{pair.prefill_pod.bootstrap_url}/query") as answer:
        ranks = await answer.json()
    held = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
    fetched = {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": transfer,
        "remote_bootstrap_addr": pair.prefill_pod.bootstrap_url,
        "remote_engine_id": ranks["0"]["engine_id"],
    }
    return {**ASKED, "max_tokens": 1, "kv_transfer_params": held}, {**ASKED, "kv_transfer_params": fetched}


async def test_both_legs_at_once() -> None:
    """The decoding pod waits for the prefilling one; what came over counts as cached."""
    async with paired(connector=MOONCAKE) as pair:
        first, second = await legs(pair, "xfer-1")
        decoding = asyncio.create_task(pair.decode.ask(CHAT, second))
        prefilled = await pair.prefill.ask(CHAT, first)
        answer = await decoding
        assert prefilled["kv_transfer_params"] is None
        assert stated(answer) == await alone()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["usage"]["prompt_tokens"]
        assert await pair.fetched_tokens() == answer["usage"]["prompt_tokens"]


async def test_a_producer_called_to_fetch_is_dead() -> None:
    """An assertion in its engine."""
    async with paired(connector=MOONCAKE) as pair:
        _, second = await legs(pair, "xfer-1")
        assert (await pair.prefill.post(CHAT, second)).status == 500
        assert (await pair.prefill.get("/health")).status == 503
