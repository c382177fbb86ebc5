"""Pods with ExampleConnector: a folder between them, no word of it in any request."""

from __future__ import annotations

from pathlib import Path

from tests.simulator.asking import chat
from tests.simulator.transfer.pairs import ASKED, CHAT, alone, paired, stated


async def test_what_one_pod_wrote_another_reads(tmp_path: Path) -> None:
    """Whole blocks only, and only of the same prompt."""
    async with paired(connector="ExampleConnector", folder=tmp_path) as pair:
        await pair.prefill.ask(CHAT, {**ASKED, "max_tokens": 1})
        answer = await pair.decode.ask(CHAT, ASKED)
        assert stated(answer) == await alone()
        prompt = answer["usage"]["prompt_tokens"]
        assert await pair.fetched_tokens() == (prompt - 1) // 16 * 16
        await pair.decode.ask(CHAT, chat("Something else " * 20))
        assert await pair.fetched_tokens() == (prompt - 1) // 16 * 16
