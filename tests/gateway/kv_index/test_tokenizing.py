"""Who makes tokens of a prompt, and what happens where nobody can."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config.models import TokenizerEntry
from gateway.kv_index.prompts import UnseenError
from gateway.kv_index.tokenizing import MISMATCHES, MOST_WAITING, RETRY_EVERY, Asked, Tokenizing, Voucher
from routing.request import Api
from tests.gateway.kv_index.exchange import Said
from tests.gateway.kv_index.tokenizers import make_folder

TEXT = msgspec.json.encode({"prompt": "sea ship"})


def asked(body: bytes = TEXT, pod: str = "http://127.0.0.1:1") -> Asked:
    return Asked(Api.COMPLETIONS, "m", "m", is_adapter=False, pod=pod, body=body)


def words(said: Said) -> list[str]:
    return [message for _, message, _ in said.lines]


@asynccontextmanager
async def tokenizing(entries: Mapping[str, TokenizerEntry]) -> AsyncIterator[tuple[Tokenizing, Said]]:
    said = Said()
    made = Tokenizing(entries, cache_bytes=1 << 20, say=said)
    made.warm_up()
    try:
        yield made, said
    finally:
        await made.close()


async def test_a_folder_that_is_broken_is_said_once(tmp_path: Path) -> None:
    """And prompts of its model are unseen."""
    (tmp_path / "tokenizer.json").write_text("{}")
    async with tokenizing({"m": TokenizerEntry(tmp_path)}) as (made, said):
        for _ in range(2):
            with pytest.raises(UnseenError, match="no_tokenizer"):
                await made.ends(asked())
        assert words(said).count("no tokenizer: the shadow caches decide") == 1


async def test_a_reload_brings_another_tokenizer(tmp_path: Path) -> None:
    """What has changed is loaded anew, and judged anew."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    async with tokenizing({"m": TokenizerEntry(broken)}) as (made, _):
        with pytest.raises(UnseenError, match="no_tokenizer"):
            await made.ends(asked())
        made.renew({"m": TokenizerEntry(make_folder(tmp_path / "good"))})
        assert (await made.ends(asked())).tokens > 0


async def test_without_the_extra_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact warmth with a tokenizer of our own is an extra."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError(name="tokenizers")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    async with tokenizing({"m": TokenizerEntry(make_folder(tmp_path / "t"))}) as (made, said):
        with pytest.raises(UnseenError, match="no_tokenizer"):
            await made.ends(asked())
        await asyncio.sleep(0)
        assert "no tokenizer: the shadow caches decide" in words(said)


async def test_a_silent_pod_is_unseen(free_port: int) -> None:
    """Nobody listens where the tokens should come from."""
    async with tokenizing({}) as (made, _):
        with pytest.raises(UnseenError, match="pod_silent"):
            await made.ends(asked(pod=f"http://127.0.0.1:{free_port}"))
        ids = msgspec.json.encode({"prompt": [1, 2, 3]})
        assert (await made.ends(asked(ids, pod=f"http://127.0.0.1:{free_port}"))).tokens == 3


async def test_too_many_at_once_are_unseen(tmp_path: Path) -> None:
    """Their answers would come too late in any case."""
    async with tokenizing({"m": TokenizerEntry(make_folder(tmp_path / "t"))}) as (made, _):
        results = await asyncio.gather(*(made.ends(asked()) for _ in range(MOST_WAITING + 5)), return_exceptions=True)
        assert sum(isinstance(result, UnseenError) for result in results) == 5


def test_a_voucher_falls_by_many_mismatches_in_a_row() -> None:
    """One equal count begins the row anew; a wrong tokenizer is tried now and then."""
    voucher = Voucher()
    for _ in range(MISMATCHES - 1):
        assert not voucher.observe(10, 11)
    assert not voucher.observe(10, 10)
    fell = [voucher.observe(10, 11) for _ in range(MISMATCHES + 2)]
    assert fell.index(True) == MISMATCHES - 1
    assert sum(fell) == 1
    assert sum(voucher.may_try() for _ in range(2 * RETRY_EVERY)) == 2
    voucher.observe(10, 10)
    assert voucher.may_try()
