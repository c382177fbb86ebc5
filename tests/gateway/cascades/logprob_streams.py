"""Streams of a pod that says how sure it was, and the same as it would have sent them had nobody asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cascade.calibration_file import AnswerVerdict
from cascade.judging import AnswerEvidence, HoldbackSettings, JudgingTrigger
from cascade.logprobs import LogprobFilter
from routing.request import Api
from tests.gateway.http.wire import DONE, usage_event

WORDS = ("Paris", " is", " the", " capital", '"', "\\", "\n", " été", "{", "}", '"},"logprobs":{', " 日本", "", ",")


@dataclass
class FixedJudge:
    """Says what it was told to say, and remembers what it was asked."""

    verdict: AnswerVerdict
    hold_back: HoldbackSettings = field(default_factory=HoldbackSettings)
    logprob_filter: LogprobFilter | None = None
    requested: list[JudgingTrigger] = field(default_factory=list)
    evidence: AnswerEvidence | None = None

    def judge(self, evidence: AnswerEvidence, moment: JudgingTrigger) -> AnswerVerdict:
        self.requested.append(moment)
        self.evidence = evidence
        return self.verdict


def reported(value: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def entry(word: str, sure: float) -> dict[str, Any]:
    tops = [{"token": word, "logprob": sure, "bytes": [1]}, {"token": "x", "logprob": sure - 1.5, "bytes": [2]}]
    return {"token": word, "logprob": sure, "bytes": list(word.encode()), "top_logprobs": tops}


def chat(delta: dict[str, Any], logprobs: Any, ends: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": ends, "token_ids": None}
    return reported({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "small", "choices": [choice]})


def chat_pair(words: list[str], thoughts: list[str] = []) -> tuple[list[bytes], list[bytes]]:  # noqa: B006 - read only
    """With log-probabilities, and without."""
    opening = {"role": "assistant", "content": ""}
    stated = [*(("reasoning", word) for word in thoughts), *(("content", word) for word in words)]
    sure, plain = [chat(opening, None)], [chat(opening, None)]
    for at, (key, word) in enumerate(stated):
        ends = "stop" if at == len(stated) - 1 else None
        sure.append(chat({key: word}, {"content": [entry(word, -0.1)]}, ends))
        plain.append(chat({key: word}, None, ends))
    return [*sure, usage_event(), DONE], [*plain, DONE]


def completions_pair(words: list[str]) -> tuple[list[bytes], list[bytes]]:
    sure: list[bytes] = []
    plain: list[bytes] = []
    for at, word in enumerate(words):
        logprobs = {
            "text_offset": [at],
            "token_logprobs": [-0.1],
            "tokens": [word],
            "top_logprobs": [{word: -0.1, "x": -2.0}],
        }
        for out, held in ((sure, logprobs), (plain, None)):
            ends = "stop" if at == len(words) - 1 else None
            choice = {"index": 0, "text": word, "logprobs": held, "finish_reason": ends, "token_ids": None}
            out.append(reported({"id": "cmpl-1", "object": "text_completion", "choices": [choice]}))
    return [*sure, usage_event(), DONE], [*plain, DONE]


def responses_pair(words: list[str]) -> tuple[list[bytes], list[bytes]]:
    pair: tuple[list[bytes], list[bytes]] = ([], [])
    text = "".join(words)
    for out, is_sure in zip(pair, (True, False), strict=True):
        begun: dict[str, Any] = {
            "id": "resp_1",
            "object": "response",
            "status": "in_progress",
            "output": [],
            "top_logprobs": 2 if is_sure else None,
        }
        out.append(reported({"response": begun, "type": "response.created"}, "response.created"))
        for at, word in enumerate(words):
            entries = [entry(word, -0.1)] if is_sure else []
            delta = {"content_index": 0, "delta": word, "logprobs": entries, "sequence_number": at}
            out.append(reported(delta | {"type": "response.output_text.delta"}, "response.output_text.delta"))
        logprobs = [entry(word, -0.1) for word in words] if is_sure else None
        part = {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}
        item = {"id": "msg_1", "content": [part], "role": "assistant", "type": "message"}
        usage = {"input_tokens": 42, "output_tokens": len(words), "total_tokens": 42 + len(words)}
        done = begun | {"status": "completed", "output": [item], "usage": usage}
        out.append(reported({"response": done, "type": "response.completed"}, "response.completed"))
    return pair


def pair_of(api: Api, draw: Random) -> tuple[list[bytes], list[bytes]]:
    words = [draw.choice(WORDS) for _ in range(draw.randint(1, 14))]
    if api is Api.COMPLETIONS:
        return completions_pair(words)
    if api is Api.RESPONSES:
        return responses_pair(words)
    return chat_pair(words, [draw.choice(WORDS) or "hm" for _ in range(draw.choice((0, 0, 3)))])


def cut_up(raw: list[bytes], draw: Random) -> list[bytes]:
    """Reads: a chunk each, several together, or ends anywhere."""
    match draw.randrange(3):
        case 0:
            return raw
        case 1:
            complete = b"".join(raw)
            ends = sorted(draw.sample(range(1, len(complete)), min(draw.randint(1, 12), len(complete) - 1)))
            return [complete[at:end] for at, end in zip([0, *ends], [*ends, len(complete)], strict=True)]
        case _:
            reads: list[bytes] = []
            for piece in raw:
                if reads and draw.random() < 0.3:
                    reads[-1] += piece
                else:
                    reads.append(piece)
            return reads
