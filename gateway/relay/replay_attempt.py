"""Learns from a pod, in its own tokens, what an answer has said that it is to go on with."""

from __future__ import annotations

from collections.abc import Callable

from gateway.pipeline.attempt import Leg, LegEnd, Prefilled
from gateway.relay.unary import Whole, ask_whole
from gateway.relay.upstream_pool import Pool
from gateway.resume.token_recovery import Recall, Recalled, recalled_from

CHAT_PATH, WORDS_PATH = "/v1/chat/completions", "/tokenize"

NOT_SO = 400

Words = Callable[[str, bytes, str], list[bytes]]
"""Head and body of a question to the pod, of a path, a body and what sets its id apart."""


async def ask_recall(pool: Pool, url: str, recall: Recall, words: Words, by_s: float) -> Recalled | Leg:
    """Both questions, one after the other, or the attempt as it failed. Raises only `asyncio.CancelledError`.

    The first one's prefill is not in vain: what is asked for next begins with the same prompt.
    """
    prompt = await ask_whole(pool, url, words(CHAT_PATH, recall.prompt, "p"), by_s)
    if not prompt.is_answer:
        return _failed(prompt)
    said = await ask_whole(pool, url, words(WORDS_PATH, recall.words, "w"), by_s)
    if not said.is_answer:
        return _failed(said)
    recalled = recalled_from(recall, prompt.body, said.body)
    return recalled or Leg(LegEnd.UNWILLING, detail="The pod does not tell thoughts in tokens that are known.")


def unprepared(failed: Leg) -> Prefilled:
    """The same as the end of a prefill leg that was never asked: a no is the pod's answer there."""
    if failed.end is LegEnd.UNWILLING:
        return Prefilled(LegEnd.ANSWERED, failed.status or NOT_SO, detail=failed.detail)
    return Prefilled(failed.end, failed.status, detail=failed.detail)


def _failed(whole: Whole) -> Leg:
    end = LegEnd.UNWILLING if whole.end is LegEnd.ANSWERED else whole.end
    return Leg(end, whole.status, detail=whole.detail)
