"""Token IDs from the pods' `/tokenize`, and what becomes of a prompt whose tokens nothing reports."""

import asyncio

import msgspec
import pytest
from aiohttp import web

from gateway.kv_index.prompts import UntokenizableError
from gateway.kv_index.tokenizer import (
    MAX_MISMATCHES,
    MAX_WAITING,
    RETRY_INTERVAL,
    PodTokenizer,
    TokenizeJob,
    TokenizerCheck,
)
from routing.precise.token_chains import BlockHashes, TokenPrompt, chain_root, pack_tokens
from routing.request import Api
from tests.gateway.kv_index.exchange import Said, until

IDS = list(range(16))


def job(prompt: object = "sea ship", pod: str = "http://127.0.0.1:1", adapter: str = "", salt: str = "") -> TokenizeJob:
    body = msgspec.json.encode({"prompt": prompt, "cache_salt": salt})
    return TokenizeJob(Api.COMPLETIONS, adapter or "m", "m", is_adapter=bool(adapter), pod=pod, body=body)


async def test_a_silent_pod_is_unobserved(free_port: int) -> None:
    """Nothing listens where the tokens should come from; a prompt of IDs needs no pod."""
    made = PodTokenizer(Said())
    try:
        with pytest.raises(UntokenizableError, match="upstream_timeout"):
            await made.tokenize(job(pod=f"http://127.0.0.1:{free_port}"))
        assert (await made.tokenize(job([1, 2, 3], f"http://127.0.0.1:{free_port}"))).tokens == 3
    finally:
        await made.close()


async def test_identity_is_adapter_and_salt() -> None:
    """The same tokens under another adapter or salt are another prompt; IDs that no engine takes are none."""
    made = PodTokenizer(Said())
    for adapter, salt in (("", ""), ("lora", ""), ("", "s"), ("lora", "s")):
        hashes = await made.tokenize(job(IDS, adapter=adapter, salt=salt))
        expected = BlockHashes(TokenPrompt(pack_tokens(IDS), chain_root(adapter, salt)))
        assert hashes.of_blocks(16, 16) == expected.of_blocks(16, 16)
    for ids in ([-1], [1 << 40]):
        with pytest.raises(UntokenizableError, match="invalid_body"):
            await made.tokenize(job(ids))


async def test_too_many_at_once_are_unobserved() -> None:
    """Their answers would come too late in any case."""
    requested, may_answer = list[str](), asyncio.Event()

    async def tokenize(request: web.Request) -> web.Response:
        requested.append((await request.json())["prompt"])
        await may_answer.wait()
        return web.json_response({"tokens": IDS})

    app = web.Application()
    app.add_routes([web.post("/tokenize", tokenize)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pod, made = f"http://127.0.0.1:{runner.addresses[0][1]}", PodTokenizer(Said())
    try:
        tasks = [asyncio.create_task(made.tokenize(job(pod=pod))) for _ in range(MAX_WAITING)]
        await until(lambda: len(requested) == MAX_WAITING)
        with pytest.raises(UntokenizableError, match="busy"):
            await made.tokenize(job(pod=pod))
        may_answer.set()
        assert {hashes.tokens for hashes in await asyncio.gather(*tasks)} == {len(IDS)}
        assert (await made.tokenize(job(pod=pod))).tokens == len(IDS)
    finally:
        await made.close()
        await runner.cleanup()


def test_a_voucher_falls_by_many_mismatches_in_a_row() -> None:
    """One equal count begins the row anew; a wrong tokenizer is tried now and then."""
    voucher = TokenizerCheck()
    for _ in range(MAX_MISMATCHES - 1):
        assert not voucher.observe(10, 11)
    assert not voucher.observe(10, 10)
    fell = [voucher.observe(10, 11) for _ in range(MAX_MISMATCHES + 2)]
    assert fell.index(True) == MAX_MISMATCHES - 1
    assert sum(fell) == 1
    assert sum(voucher.may_try() for _ in range(2 * RETRY_INTERVAL)) == 2
    voucher.observe(10, 10)
    assert voucher.may_try()
