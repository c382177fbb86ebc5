"""Tokenizes prompts as the engine does: with the model's tokenizer in a thread, or by a pod's `/tokenize`.

A long conversation is tokenized once: text between special tokens (a message, mostly) is tokenized separately in any
case, so its tokens are cached by digest. When a tokenizer is loaded, trial texts check that this gives the same tokens;
otherwise texts are tokenized whole. `LocalTokenizer` is called from several threads.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from gateway.config.models import POD_TOKENIZER, TokenizerEntry
from gateway.kv_index.chat_templates import CannotRenderError, ChatTemplate
from gateway.kv_index.prompts import (
    ChatInput,
    PromptInput,
    TextInput,
    TokenIdsInput,
    UntokenizableError,
    normalize_messages,
    read_prompt,
)
from gateway.runtime.event_log import EventLog
from routing.precise.token_chains import BlockHashes, TokenPrompt, chain_root, pack_tokens, text_digest
from routing.request import Api

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

ENTRY_BYTES = 150
"""Overhead of a cache entry beside its tokens, about."""

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

TRIAL_TEXTS = (
    "Hello, world!",
    "  two  spaces\n\n\tand tabs ",
    "naïve café — 你好, мир 🙂",
    "def f(x):\n    return {'a': [1, 2.5e-3]}\n",
    "\n",
    " leading",
    "trailing\n",
    "",
)
"""Texts between special tokens, for the check of piecewise tokenizing."""


class BadTokenizerError(Exception):
    """The folder holds no usable tokenizer."""


class TokenCache:
    """An LRU cache of tokens by digest of the text, bounded in bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Memory it takes, about."""
        return self._bytes

    def get(self, digest: bytes) -> bytes | None:
        with self._lock:
            packed = self._held.get(digest)
            if packed is not None:
                self._held.move_to_end(digest)
            return packed

    def put(self, digest: bytes, packed: bytes) -> None:
        with self._lock:
            if digest in self._held:
                return
            self._held[digest] = packed
            self._bytes += len(packed) + ENTRY_BYTES
            while self._bytes > self._most and self._held:
                _, gone = self._held.popitem(last=False)
                self._bytes -= len(gone) + ENTRY_BYTES


class LocalTokenizer:
    """The tokenizer of one model. `TokenPrompt`s include the cache salt of the request and the adapter."""

    def __init__(self, folder: Path, template: Path | None, *, cache_bytes: int, now: Callable[[], datetime]) -> None:
        """Load a tokenizer from its folder. Raises `BadTokenizerError`, and `ModuleNotFoundError` without the extra."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

        self.pieces = TokenCache(cache_bytes)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            settings = _read_json(folder / "tokenizer_config.json")
            sources = _templates(folder, settings, template)
            special = _special_tokens(folder, settings)
            self._templates = {name: ChatTemplate(source, special, now) for name, source in sources.items()}
        except ModuleNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise BadTokenizerError(f"{folder}: {error}") from None
        self._specials, self._cut = _cutter(self._tokenizer)
        self._before, self._after = self._wrapping()
        self.cuts_apart = self._is_same_apart()
        """Whether texts are tokenized piecewise."""

    def prompt(self, prompt_input: PromptInput, adapter: str = "") -> TokenPrompt:
        """Tokenize a prompt. Raises `UntokenizableError`."""
        root = chain_root(adapter, prompt_input.salt)
        match prompt_input:
            case TokenIdsInput(ids):
                try:
                    return TokenPrompt(pack_tokens(ids), root)
                except (OverflowError, TypeError):
                    raise UntokenizableError("invalid_body") from None
            case TextInput(text, special_tokens):
                return TokenPrompt(self._packed(text, wrapped=special_tokens), root)
            case ChatInput():
                return TokenPrompt(
                    self._packed(self._rendered(prompt_input), wrapped=prompt_input.special_tokens), root
                )

    def _rendered(self, chat: ChatInput) -> str:
        template = (self._templates.get("tool_use") if chat.tools else None) or self._templates.get("default")
        if template is None:
            raise UntokenizableError("no_template")
        messages = normalize_messages(
            chat.messages, wants_parts=template.wants_parts, knows_developers=template.knows_developers
        )
        try:
            return template.render(messages, chat.tools, chat.settings, continue_final=chat.continue_final)
        except CannotRenderError:
            raise UntokenizableError("template_error") from None

    # -- text to tokens --------------------------------------------------------------------------------------------

    def _packed(self, text: str, *, wrapped: bool) -> bytes:
        try:
            if not self.cuts_apart:
                return self._whole(text, wrapped=wrapped)
            packed = self._apart(text)
        except UnicodeEncodeError:
            raise UntokenizableError("invalid_body") from None
        return self._before + packed + self._after if wrapped else packed

    def _whole(self, text: str, *, wrapped: bool) -> bytes:
        return pack_tokens(self._tokenizer.encode(text, add_special_tokens=wrapped).ids)

    def _apart(self, text: str) -> bytes:
        pieces = self._cut.split(text) if self._cut else [text]
        # Every other piece is a special token.
        return b"".join(
            [self._specials[piece] if place & 1 else self._piece(piece) for place, piece in enumerate(pieces) if piece]
        )

    def _piece(self, text: str) -> bytes:
        digest = text_digest(text)
        packed = self.pieces.get(digest)
        if packed is None:
            packed = self._whole(text, wrapped=False)
            self.pieces.put(digest, packed)
        return packed

    # -- checks when loaded --------------------------------------------------------------------------------------------

    def _wrapping(self) -> tuple[bytes, bytes]:
        """The tokens that the tokenizer adds before and after a text."""
        plain, wrapped = self._whole("a b", wrapped=False), self._whole("a b", wrapped=True)
        at = wrapped.find(plain)
        return (wrapped[:at], wrapped[at + len(plain) :]) if at >= 0 else (b"", b"")

    def _is_same_apart(self) -> bool:
        texts = list(TRIAL_TEXTS)
        for special in list(self._specials)[:64]:
            texts += [special.join(TRIAL_TEXTS), f" {special} {special}\n{special}x", f"{special}{special}"]
        return all(
            self._apart(text) == self._whole(text, wrapped=False)
            and self._before + self._apart(text) + self._after == self._whole(text, wrapped=True)
            for text in texts
            if text
        )


def _cutter(tokenizer: Tokenizer) -> tuple[dict[str, bytes], re.Pattern[str] | None]:
    """The special tokens at which the tokenizer splits every text, and the pattern that finds them."""
    added: Mapping[int, AddedToken] = tokenizer.get_added_tokens_decoder()
    specials = {
        token.content: pack_tokens([number])
        for number, token in added.items()
        if token.content and not (token.normalized or token.single_word or token.lstrip or token.rstrip)
    }
    if not specials:
        return {}, None
    longest_first = sorted(specials, key=len, reverse=True)
    return specials, re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _templates(folder: Path, settings: Mapping[str, Any], template: Path | None) -> dict[str, str]:
    """Chat templates by name; `default` is used unless another is named."""
    if template is not None:
        return {"default": template.read_text(encoding="utf-8")}
    found = settings.get("chat_template")
    sources = {"default": found} if isinstance(found, str) else {one["name"]: one["template"] for one in found or ()}
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        sources["default"] = beside.read_text(encoding="utf-8")
    for more in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[more.stem] = more.read_text(encoding="utf-8")
    return sources


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens by the name of their template variable."""
    configured = _read_json(folder / "special_tokens_map.json") | dict(settings)
    found: dict[str, Any] = {}
    for name in SPECIAL_NAMES:
        token = configured.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


MAX_WAITING = 64
"""Prompts in progress. With more, answers would be late in any case."""

THREADS = 2
"""A long prompt must not delay all others; the tokenizer releases the GIL."""

POD_TIMEOUT_S = 1.0

MAX_MISMATCHES = 8
"""Prompts in a row whose length the engine counts differently, until a tokenizer counts as wrong."""

RETRY_INTERVAL = 32
"""A wrong tokenizer is used for one of this many prompts, to see whether it matches again."""


@dataclass(slots=True)
class TokenizerCheck:
    """Whether the tokenizer of a model agrees with its engines on the length of prompts."""

    mismatches: int = 0
    """In a row."""
    skipped: int = 0

    @property
    def is_wrong(self) -> bool:
        return self.mismatches >= MAX_MISMATCHES

    def may_try(self) -> bool:
        """Whether to use it for this prompt: always, or now and then while it is wrong."""
        if not self.is_wrong:
            return True
        self.skipped += 1
        return self.skipped % RETRY_INTERVAL == 0

    def observe(self, expected: int, counted: int) -> bool:
        """Compare two counts of a prompt. True where the tokenizer thereby becomes wrong."""
        was_wrong = self.is_wrong
        self.mismatches = 0 if expected == counted else self.mismatches + 1
        return self.is_wrong and not was_wrong


@dataclass(slots=True)
class TokenizeJob:
    """A prompt to tokenize."""

    api: Api
    model: str
    base: str
    """The model whose tokenizer is used: differs from `model` for an adapter."""
    is_adapter: bool
    pod: str
    """URL of a pod that serves the model."""
    body: bytes


class Tokenizers:
    """Tokenizes for all models of one index process."""

    def __init__(
        self,
        entries: Mapping[str, TokenizerEntry],
        *,
        cache_bytes: int,
        say: EventLog,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.counts: dict[str, int] = {}
        """Prompts that were not tokenized, by reason."""
        self._entries = dict(entries)
        self._cache_bytes = cache_bytes
        self._say = say
        self._now = now
        self._local: dict[str, LocalTokenizer | None] = {}
        self._loading = Lock()
        self._vouchers: dict[str, TokenizerCheck] = {}
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._session: aiohttp.ClientSession | None = None

    async def tokenize(self, job: TokenizeJob) -> BlockHashes:
        """Tokenize a prompt and hash it in blocks. Raises `UntokenizableError`."""
        if self._waiting >= MAX_WAITING:
            raise UntokenizableError("tokenizer_busy")
        if not self._vouchers.setdefault(job.base, TokenizerCheck()).may_try():
            raise UntokenizableError("wrong_tokenizer")
        self._waiting += 1
        try:
            entry = self._entries.get(job.base)
            if entry is None or entry.place == POD_TOKENIZER:
                return await self._tokenize_at_pod(job)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._tokenize_here, job, entry)
        finally:
            self._waiting -= 1

    def check(self, model: str, expected: int, counted: int) -> None:
        """Compare our length of a prompt with the engine's."""
        if self._vouchers.setdefault(model, TokenizerCheck()).observe(expected, counted):
            self._say(
                "warning",
                "tokenizer_mismatch",
                model=model,
                expected_tokens=expected,
                counted_tokens=counted,
            )

    def renew(self, entries: Mapping[str, TokenizerEntry]) -> None:
        """Take over other tokenizers: changed ones are loaded and checked again."""
        for model in [model for model, entry in self._entries.items() if entries.get(model) != entry]:
            self._local.pop(model, None)
            self._vouchers.pop(model, None)
        self._entries = dict(entries)
        self.warm_up()

    def warm_up(self) -> None:
        """Load all configured tokenizers in the background."""
        self._loop = asyncio.get_running_loop()
        for model, entry in self._entries.items():
            if entry.place != POD_TOKENIZER:
                self._thread.submit(self._load, model, entry)

    async def close(self) -> None:
        """Stop the threads and close the connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._session is not None:
            await self._session.close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _tokenize_here(self, job: TokenizeJob, entry: TokenizerEntry) -> BlockHashes:
        tokenizer = self._load(job.base, entry)
        if tokenizer is None:
            raise UntokenizableError("no_tokenizer")
        prompt_input = read_prompt(job.api, job.body)
        try:
            ends = BlockHashes(tokenizer.prompt(prompt_input, job.model if job.is_adapter else ""))
        except UntokenizableError:
            raise
        except Exception:  # noqa: BLE001 - the library raises errors of its own
            raise UntokenizableError("tokenizer_error") from None
        ends.of_blocks(16, 16)  # Hashed in this thread, off the loop.
        return ends

    def _load(self, model: str, entry: TokenizerEntry) -> LocalTokenizer | None:
        with self._loading:
            if model not in self._local:
                self._local[model] = self._loaded(model, entry)
            return self._local[model]

    def _loaded(self, model: str, entry: TokenizerEntry) -> LocalTokenizer | None:
        try:
            found = LocalTokenizer(Path(entry.place), entry.template, cache_bytes=self._cache_bytes, now=self._now)
        except ModuleNotFoundError as missing:
            why = f"{missing.name} is not installed (it comes with hearth-gateway[exact])"
        except BadTokenizerError as error:
            why = str(error)
        else:
            self._log_from_thread("info", "tokenizer_loaded", model=model, incremental=found.cuts_apart)
            return found
        self._log_from_thread("error", "tokenizer_unavailable", model=model, error=why)
        return None

    def _log_from_thread(self, level: str, words: str, **more: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(self._say, level, words, **more))

    # -- at a pod ------------------------------------------------------------------------------------------------------

    async def _tokenize_at_pod(self, job: TokenizeJob) -> BlockHashes:
        prompt_input = read_prompt(job.api, job.body)
        root = chain_root(job.model if job.is_adapter else "", prompt_input.salt)
        if isinstance(prompt_input, TokenIdsInput):
            return BlockHashes(TokenPrompt(pack_tokens(prompt_input.ids), root))
        payload = _tokenize_body(prompt_input) | {"model": job.model}
        try:
            async with self._open().post(f"{job.pod}/tokenize", json=payload) as answer:
                if answer.status != 200:
                    raise UntokenizableError("upstream_rejected")
                result = msgspec.json.decode(await answer.read(), type=_Tokens)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            raise UntokenizableError("upstream_timeout") from None
        return BlockHashes(TokenPrompt(pack_tokens(result.tokens), root))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=POD_TIMEOUT_S)
            connector = aiohttp.TCPConnector(limit=MAX_WAITING, keepalive_timeout=3.0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        return self._session


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _tokenize_body(prompt_input: ChatInput | TextInput) -> dict[str, Any]:
    if isinstance(prompt_input, TextInput):
        return {"prompt": prompt_input.text, "add_special_tokens": prompt_input.special_tokens}
    settings = dict(prompt_input.settings)
    adds = settings.pop("add_generation_prompt")
    return {
        "messages": list(prompt_input.messages),
        "tools": prompt_input.tools,
        "add_generation_prompt": adds and not prompt_input.continue_final,
        "continue_final_message": prompt_input.continue_final,
        "add_special_tokens": prompt_input.special_tokens,
        "chat_template_kwargs": settings,
    }
