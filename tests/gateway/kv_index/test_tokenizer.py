"""Prompts as tokens: piece by piece or whole, always the same."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.config.models import TokenizerEntry
from gateway.kv_index.prompts import ChatInput, TextInput, TokenIdsInput, UntokenizableError
from gateway.kv_index.tokenizer import (
    MAX_MISMATCHES,
    MAX_WAITING,
    RETRY_INTERVAL,
    BadTokenizerError,
    LocalTokenizer,
    TokenCache,
    TokenizeJob,
    TokenizerCheck,
    Tokenizers,
)
from routing.precise.token_chains import chain_root, pack_tokens
from routing.request import Api
from tests.gateway.kv_index.exchange import Said
from tests.gateway.kv_index.tokenizers import SPECIALS, make_folder


def load(folder: Path, template: Path | None = None) -> LocalTokenizer:
    return LocalTokenizer(folder, template, cache_bytes=1 << 20, now=lambda: datetime(2026, 1, 2, tzinfo=UTC))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokenizer") / "plain")


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalTokenizer:
    return load(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


texts = st.lists(st.text(max_size=12) | st.sampled_from([*SPECIALS, "sea ship", "\n", "  "]), max_size=8).map("".join)


@given(texts)
def test_pieces_give_the_tokens_of_the_whole(local: LocalTokenizer, library: Tokenizer, text: str) -> None:
    """Whatever is written between special tokens, and whoever writes special tokens by hand."""
    assert local.cuts_apart
    for _ in range(2):
        assert local.prompt(TextInput(text, special_tokens=False)).packed == pack_tokens(library.encode(text).ids)


def test_a_tokenizer_that_cannot_be_cut_is_used_whole(tmp_path: Path) -> None:
    """A special token that eats the spaces beside it makes pieces that are not the whole."""
    folder = make_folder(tmp_path / "odd", odd=True)
    odd, library = load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("sea <|eats|> ship", "sea<|im_end|> ship"):
        assert odd.prompt(TextInput(text)).packed == pack_tokens(library.encode(text).ids)


def test_what_a_tokenizer_adds_by_itself_is_added(tmp_path: Path) -> None:
    """A first token before every text, where special tokens are asked for; chats ask for none."""
    folder = make_folder(tmp_path / "bos", bos=True)
    with_bos, library = load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert with_bos.cuts_apart
    assert with_bos.prompt(TextInput("sea ship")).packed == pack_tokens(library.encode("sea ship").ids)
    plain = library.encode("sea ship", add_special_tokens=False).ids
    assert with_bos.prompt(TextInput("sea ship", special_tokens=False)).packed == pack_tokens(plain)
    assert with_bos.prompt(TextInput("")).tokens == 1


def test_a_conversation_that_grows_is_tokenised_once(local: LocalTokenizer, library: Tokenizer) -> None:
    """Each turn adds its own pieces only, and the chain of the turn before is a beginning of it."""
    messages = [{"role": "user", "content": "a captain"}]
    first = local.prompt(ChatInput(messages, settings={"add_generation_prompt": True}))
    known = len(local.pieces)
    messages += [{"role": "assistant", "content": "island storm"}, {"role": "user", "content": "ship"}]
    second = local.prompt(ChatInput(messages, settings={"add_generation_prompt": True}))
    assert len(local.pieces) - known == 2
    assert second.packed.startswith(first.packed)
    text = (
        "<|im_start|>user\na captain<|im_end|>\n<|im_start|>assistant\nisland storm<|im_end|>\n"
        "<|im_start|>user\nship<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second.packed == pack_tokens(library.encode(text).ids)


def test_identity_is_adapter_and_salt(local: LocalTokenizer) -> None:
    """The same tokens under another adapter or salt are another prompt."""
    assert local.prompt(TokenIdsInput([1, 2], "s"), "lora").root == chain_root("lora", "s")
    assert local.prompt(TokenIdsInput([1, 2])).packed == pack_tokens([1, 2])
    with pytest.raises(UntokenizableError):
        local.prompt(TokenIdsInput([-1]))


def test_lone_surrogates_are_the_engines_to_refuse(local: LocalTokenizer) -> None:
    """JSON can hold what is no text."""
    with pytest.raises(UntokenizableError):
        local.prompt(TextInput("a\ud800b"))


def test_a_template_of_the_configuration_wins(folder: Path, tmp_path: Path) -> None:
    """As vLLM's own --chat-template does; special tokens have their names in it."""
    template = tmp_path / "t.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}{{ strftime_now('%Y') }}")
    told = load(folder, template).prompt(ChatInput([{"role": "user", "content": "sea"}]))
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert told.packed == pack_tokens(library.encode("<|endoftext|>sea2026").ids)


def test_named_templates_are_found(tmp_path: Path) -> None:
    """Tokenizer settings may hold several; the one for tools serves where there are tools."""
    folder = make_folder(tmp_path / "named", template=None)
    settings = '{"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "tt"}]}'
    (folder / "tokenizer_config.json").write_text(settings)
    named = load(folder)
    message = [{"role": "user", "content": "x"}]
    lengths = [named.prompt(ChatInput(message, tools)).tokens for tools in (None, [{"type": "function"}])]
    assert lengths == [1, 2]


def test_without_a_template_chats_are_unseen(tmp_path: Path) -> None:
    """Completions are not."""
    bare = load(make_folder(tmp_path / "bare", template=None))
    with pytest.raises(UntokenizableError, match="no_template"):
        bare.prompt(ChatInput([{"role": "user", "content": "x"}]))
    assert bare.prompt(TextInput("sea")).tokens > 0


@pytest.mark.parametrize("content", ["{", "{}", ""])
def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path, content: str) -> None:
    """Whatever the library thinks of it."""
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadTokenizerError):
        load(tmp_path)


def test_remembered_pieces_are_bounded_in_bytes() -> None:
    """The least recently used go first."""
    pieces = TokenCache(1000)
    for name in range(20):
        pieces.put(bytes([name]), b"x" * 50)
        pieces.get(bytes([0]))
    assert pieces.held_bytes <= 1000
    assert pieces.get(bytes([0])) is not None
    assert pieces.get(bytes([1])) is None
    assert len(pieces) == 5


TEXT = msgspec.json.encode({"prompt": "sea ship"})


def asked(body: bytes = TEXT, pod: str = "http://127.0.0.1:1") -> TokenizeJob:
    return TokenizeJob(Api.COMPLETIONS, "m", "m", is_adapter=False, pod=pod, body=body)


def words(said: Said) -> list[str]:
    return [message for _, message, _ in said.lines]


@asynccontextmanager
async def tokenizing(entries: Mapping[str, TokenizerEntry]) -> AsyncIterator[tuple[Tokenizers, Said]]:
    said = Said()
    made = Tokenizers(entries, cache_bytes=1 << 20, say=said)
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
            with pytest.raises(UntokenizableError, match="no_tokenizer"):
                await made.tokenize(asked())
        assert words(said).count("tokenizer_unavailable") == 1


async def test_a_reload_brings_another_tokenizer(tmp_path: Path) -> None:
    """What has changed is loaded anew, and judged anew."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    async with tokenizing({"m": TokenizerEntry(broken)}) as (made, _):
        with pytest.raises(UntokenizableError, match="no_tokenizer"):
            await made.tokenize(asked())
        made.renew({"m": TokenizerEntry(make_folder(tmp_path / "good"))})
        assert (await made.tokenize(asked())).tokens > 0


async def test_without_the_extra_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact warmth with a tokenizer of our own is an extra."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError(name="tokenizers")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    async with tokenizing({"m": TokenizerEntry(make_folder(tmp_path / "t"))}) as (made, said):
        with pytest.raises(UntokenizableError, match="no_tokenizer"):
            await made.tokenize(asked())
        await asyncio.sleep(0)
        assert "tokenizer_unavailable" in words(said)


async def test_a_silent_pod_is_unseen(free_port: int) -> None:
    """Nobody listens where the tokens should come from."""
    async with tokenizing({}) as (made, _):
        with pytest.raises(UntokenizableError, match="upstream_timeout"):
            await made.tokenize(asked(pod=f"http://127.0.0.1:{free_port}"))
        ids = msgspec.json.encode({"prompt": [1, 2, 3]})
        assert (await made.tokenize(asked(ids, pod=f"http://127.0.0.1:{free_port}"))).tokens == 3


async def test_too_many_at_once_are_unseen(tmp_path: Path) -> None:
    """Their answers would come too late in any case."""
    async with tokenizing({"m": TokenizerEntry(make_folder(tmp_path / "t"))}) as (made, _):
        results = await asyncio.gather(
            *(made.tokenize(asked()) for _ in range(MAX_WAITING + 5)), return_exceptions=True
        )
        assert sum(isinstance(result, UntokenizableError) for result in results) == 5


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
