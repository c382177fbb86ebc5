"""Prompts that no engine can answer within their tier's TTFT, over HTTP: served late, or rejected in clear words."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.scenarios import place as places
from tests.scenarios.place import LONG, a_place, asking

QUICK = {"priority": 10, "ttft_s": 0.02, "tpot_s": 1}
"""Shorter than the prefill of the prompts below."""


async def test_idle_engines_serve_what_they_cannot_serve_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default every long prompt is answered on the first try."""
    monkeypatch.setitem(places.TIERS, "quick", QUICK)
    async with a_place(tmp_path, hasty={"tier": "quick"}) as place, place.openai("hasty", max_retries=0) as client:
        for number in range(3):
            answer = await client.chat.completions.create(**asking(f"{number} {LONG * 4}"))
            assert answer.choices
        receipts = await place.receipts("hasty")
    assert [receipt["status"] for receipt in receipts] == [200] * 3


async def test_a_tier_that_rejects_them_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt by the official client, both times in the message and on the receipt, and no time to come back."""
    monkeypatch.setitem(places.TIERS, "quick", QUICK | {"on_unattainable": "reject"})
    async with a_place(tmp_path, hasty={"tier": "quick"}) as place, place.openai("hasty", max_retries=2) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**asking(LONG * 4))
        headers = caught.value.response.headers
        assert headers["x-should-retry"] == "false"
        assert headers["x-hearth-reason"] == "overloaded"
        assert not {"retry-after", "retry-after-ms"} & set(headers)
        assert "0.02 s" in caught.value.message
        assert (await client.chat.completions.create(**asking())).choices
        short, long = await place.receipts("hasty")
    assert short["status"] == 200
    assert long["status"] == 429
    assert long["slo_ttft_s"] == 0.02
    assert long["predicted_ttft_s"] > 0.02
    assert f"{long['predicted_ttft_s']:.3g} s" in caught.value.message
