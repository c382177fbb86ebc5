"""The route log: one JSON line per request from which its routing can be replayed, and no prompt can be read.

A line has sizes, times, the engine, and which prompts share a prefix: each block's hash, hashed once more under a key
that is drawn when the gateway starts and never written with the log. So the log cannot be used to test for a prompt,
and prefixes are comparable within one run only.
"""

from __future__ import annotations

import os
from base64 import b64encode
from hashlib import blake2b
from pathlib import Path

import msgspec

from gateway.pipeline.record import Outcome

ROUTE_SCHEMA = 2
"""Version of a line; version 1 had no `schema`."""

KEY_BYTES = 32

DIGEST_BYTES = 8
"""Of a block: a million blocks collide with a chance of one in ten million."""


class RouteRecorder:
    """Encodes the lines. `key` is shared by the processes of a host, so that their prompts are comparable."""

    def __init__(self, key: bytes) -> None:
        self._blank = blake2b(digest_size=DIGEST_BYTES, key=key)
        self._run = self._digest(b"run").hex()

    def __call__(self, outcome: Outcome) -> bytes:
        """Return the line of one request; empty where it never reached an engine or was not answered."""
        usage, session = outcome.usage, outcome.session
        if usage is None or not outcome.attempts:
            return b""
        last = outcome.attempts[-1]
        blocks = b"".join(self._digest(block.to_bytes(8, "little")) for block in outcome.prompt.blocks)
        return (
            msgspec.json.encode(
                {
                    "schema": ROUTE_SCHEMA,
                    "run": self._run,
                    "started_at_s": round(outcome.at_s - outcome.duration_s, 4),
                    "model": outcome.model,
                    "session": self._digest(session.encode()).hex() if session else None,
                    "input_tokens": usage.prompt_tokens,
                    "output_tokens": usage.completion_tokens,
                    "cached_input_tokens": usage.cached_tokens,
                    "engine": last.engine,
                    "predicted_cached_input_tokens": last.predicted_cached_input_tokens,
                    "predicted_ttft_s": round(last.predicted_ttft_s, 6),
                    "ttft_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 6),
                    "duration_s": round(outcome.duration_s, 6),
                    "prompt_bytes": outcome.prompt_bytes,
                    "blocks": b64encode(blocks).decode("ascii"),
                }
            )
            + b"\n"
        )

    def _digest(self, words: bytes) -> bytes:
        digest = self._blank.copy()
        digest.update(words)
        return digest.digest()


def shared_key(folder: Path | None) -> bytes:
    """A fresh key; for the processes of one host the one that the first of them put into their private run folder."""
    fresh = os.urandom(KEY_BYTES)
    if folder is None:
        return fresh
    path, draft = folder / "routes.key", folder / f"routes.key.{os.getpid()}"
    draft.write_bytes(fresh)
    try:
        # A link appears whole or not at all: who comes second reads what the first has drawn.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_bytes()
