"""Turns bodies into tokens for all models: by a tokenizer of our own in a thread, or by a pod's `/tokenize`.

What takes long or fails is not waited for here; whoever asked has a time limit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import aiohttp
import msgspec

from gateway.config.exact import POD, TokenizerEntry
from gateway.kv_index.prompts import Chat, Ids, Text, UnseenError, read_spoken
from gateway.kv_index.tokenizer import BadTokenizerError, LocalTokenizer
from gateway.observe.log import EventLog
from routing.precise.token_chains import Ends, TokenPrompt, pack_tokens, root_of
from routing.request import Api

MOST_WAITING = 64
"""Prompts at once. Beyond them the answer would come too late in any case."""

THREADS = 2
"""One long prompt must not hold up all others; the tokenizer lets go of the interpreter while it works."""

POD_WAIT_S = 1.0

MISMATCHES = 8
"""Prompts in a row whose length an engine counted otherwise, until a tokenizer is taken to be the wrong one."""

RETRY_EVERY = 32
"""A tokenizer in doubt is tried on one of so many prompts."""


@dataclass(slots=True)
class Voucher:
    """Whether a model's tokenizer counts as its engines do."""

    mismatches: int = 0
    """In a row."""
    skipped: int = 0

    @property
    def is_wrong(self) -> bool:
        return self.mismatches >= MISMATCHES

    def may_try(self) -> bool:
        """Now, or now and then where it was wrong."""
        if not self.is_wrong:
            return True
        self.skipped += 1
        return self.skipped % RETRY_EVERY == 0

    def observe(self, expected: int, counted: int) -> bool:
        """Take note of a prompt's length. True where that made it wrong."""
        was_wrong = self.is_wrong
        self.mismatches = 0 if expected == counted else self.mismatches + 1
        return self.is_wrong and not was_wrong


@dataclass(slots=True)
class Asked:
    """One prompt to be made tokens of."""

    api: Api
    model: str
    base: str
    """The model whose tokenizer it is: another where `model` is an adapter."""
    is_adapter: bool
    pod: str
    """One that serves it."""
    body: bytes


class Tokenizing:
    """One per warmth process."""

    def __init__(
        self,
        entries: Mapping[str, TokenizerEntry],
        *,
        cache_bytes: int,
        say: EventLog,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.counts: dict[str, int] = {}
        """Prompts that were not made tokens of, by why."""
        self._entries = dict(entries)
        self._cache_bytes = cache_bytes
        self._say = say
        self._now = now
        self._local: dict[str, LocalTokenizer | None] = {}
        self._loading = Lock()
        self._vouchers: dict[str, Voucher] = {}
        self._waiting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._session: aiohttp.ClientSession | None = None

    async def ends(self, asked: Asked) -> Ends:
        """The chain of a prompt. Raises `UnseenError`."""
        if self._waiting >= MOST_WAITING:
            raise UnseenError("busy")
        if not self._vouchers.setdefault(asked.base, Voucher()).may_try():
            raise UnseenError("wrong_tokenizer")
        self._waiting += 1
        try:
            entry = self._entries.get(asked.base)
            if entry is None or entry.place == POD:
                return await self._by_pod(asked)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._by_ourselves, asked, entry)
        finally:
            self._waiting -= 1

    def check(self, model: str, expected: int, counted: int) -> None:
        """An engine has counted a prompt of ours."""
        if self._vouchers.setdefault(model, Voucher()).observe(expected, counted):
            self._say(
                "warning",
                "prompts are longer or shorter than our tokenizer says: the shadow caches decide",
                model=model,
                expected_tokens=expected,
                counted_tokens=counted,
            )

    def renew(self, entries: Mapping[str, TokenizerEntry]) -> None:
        """Go by other entries: what has changed is loaded anew and judged anew."""
        for model in [model for model, entry in self._entries.items() if entries.get(model) != entry]:
            self._local.pop(model, None)
            self._vouchers.pop(model, None)
        self._entries = dict(entries)
        self.warm_up()

    def warm_up(self) -> None:
        """Load what is configured, before the first prompt waits for it."""
        self._loop = asyncio.get_running_loop()
        for model, entry in self._entries.items():
            if entry.place != POD:
                self._thread.submit(self._load, model, entry)

    async def close(self) -> None:
        """Let go of thread and connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._session is not None:
            await self._session.close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _by_ourselves(self, asked: Asked, entry: TokenizerEntry) -> Ends:
        tokenizer = self._load(asked.base, entry)
        if tokenizer is None:
            raise UnseenError("no_tokenizer")
        spoken = read_spoken(asked.api, asked.body)
        try:
            ends = Ends(tokenizer.prompt(spoken, asked.model if asked.is_adapter else ""))
        except UnseenError:
            raise
        except Exception:  # noqa: BLE001 - the library's own, for texts that nobody has thought of
            raise UnseenError("fault") from None
        ends.of_blocks(16, 16)  # Hashed here, where it holds up nobody.
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
            self._say_from_thread("info", "tokenizer loaded", model=model, incremental=found.cuts_apart)
            return found
        self._say_from_thread("error", "no tokenizer: the shadow caches decide", model=model, why=why)
        return None

    def _say_from_thread(self, level: str, words: str, **more: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(self._say, level, words, **more))

    # -- at a pod ------------------------------------------------------------------------------------------------------

    async def _by_pod(self, asked: Asked) -> Ends:
        spoken = read_spoken(asked.api, asked.body)
        root = root_of(asked.model if asked.is_adapter else "", spoken.salt)
        if isinstance(spoken, Ids):
            return Ends(TokenPrompt(pack_tokens(spoken.ids), root))
        question = _question(spoken) | {"model": asked.model}
        try:
            async with self._open().post(f"{asked.pod}/tokenize", json=question) as answer:
                if answer.status != 200:
                    raise UnseenError("pod_refused")
                told = msgspec.json.decode(await answer.read(), type=_Tokens)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            raise UnseenError("pod_silent") from None
        return Ends(TokenPrompt(pack_tokens(told.tokens), root))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=POD_WAIT_S)
            connector = aiohttp.TCPConnector(limit=MOST_WAITING, keepalive_timeout=3.0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        return self._session


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _question(spoken: Chat | Text) -> dict[str, Any]:
    if isinstance(spoken, Text):
        return {"prompt": spoken.text, "add_special_tokens": spoken.special_tokens}
    settings = dict(spoken.settings)
    adds = settings.pop("add_generation_prompt")
    return {
        "messages": list(spoken.messages),
        "tools": spoken.tools,
        "add_generation_prompt": adds and not spoken.continue_final,
        "continue_final_message": spoken.continue_final,
        "add_special_tokens": spoken.special_tokens,
        "chat_template_kwargs": settings,
    }
