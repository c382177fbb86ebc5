"""Gets the token IDs of prompts from the pods' own `/tokenize`, and checks them against the engines' counts."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.kv_index.prompts import UntokenizableError, read_prompt
from gateway.runtime.event_log import EventLog
from routing.precise.token_chains import BlockHashes, TokenPrompt, chain_root, pack_tokens
from routing.request import Api

MAX_WAITING = 64
"""Prompts in progress. With more, answers would be late in any case."""

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


class PodTokenizer:
    """Tokenizes for all models of one index process."""

    def __init__(self, log_event: EventLog) -> None:
        self._log_event = log_event
        self._checks: dict[str, TokenizerCheck] = {}
        self._waiting = 0
        self._session: aiohttp.ClientSession | None = None

    async def tokenize(self, job: TokenizeJob) -> BlockHashes:
        """Tokenize a prompt and hash it in blocks. Raises `UntokenizableError`."""
        if self._waiting >= MAX_WAITING:
            raise UntokenizableError("tokenizer_busy")
        if not self._checks.setdefault(job.base, TokenizerCheck()).may_try():
            raise UntokenizableError("wrong_tokenizer")
        self._waiting += 1
        try:
            return await self._tokenize(job)
        finally:
            self._waiting -= 1

    def check(self, model: str, expected: int, counted: int) -> None:
        """Compare the length of a prompt by `/tokenize` with the engine's."""
        if self._checks.setdefault(model, TokenizerCheck()).observe(expected, counted):
            self._log_event(
                "warning",
                "tokenizer_mismatch",
                model=model,
                expected_tokens=expected,
                counted_tokens=counted,
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _tokenize(self, job: TokenizeJob) -> BlockHashes:
        prompt = read_prompt(job.api, job.body)
        ids = prompt.ids
        if ids is None:
            ids = await self._ask_pod(f"{job.pod}/tokenize", {**prompt.fields, "model": job.model})
        root = chain_root(job.model if job.is_adapter else "", prompt.salt)
        try:
            return BlockHashes(TokenPrompt(pack_tokens(ids), root))
        except (OverflowError, TypeError):
            raise UntokenizableError("invalid_body") from None

    async def _ask_pod(self, url: str, body: object) -> list[int]:
        try:
            async with self._open().post(url, json=body) as answer:
                if answer.status != 200:
                    raise UntokenizableError("upstream_rejected")
                return msgspec.json.decode(await answer.read(), type=_Tokens).tokens
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            raise UntokenizableError("upstream_timeout") from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=POD_TIMEOUT_S)
            connector = aiohttp.TCPConnector(limit=MAX_WAITING, keepalive_timeout=3.0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        return self._session


class _Tokens(msgspec.Struct):
    tokens: list[int]
