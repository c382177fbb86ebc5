"""What is asked in the golden run and what happens meanwhile: made up once from a seed, the same each time. Values."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

WORDS = [
    "hearth",
    "fire",
    "ember",
    "stone",
    "river",
    "bridge",
    "winter",
    "harvest",
    "letter",
    "engine",
    "signal",
    "paper",
    "window",
    "garden",
    "road",
    "mountain",
    "market",
    "morning",
    "shadow",
    "copper",
    "silver",
    "thread",
    "lantern",
    "harbour",
    "anchor",
    "compass",
    "timber",
    "valley",
    "orchard",
]


@dataclass(frozen=True)
class Asked:
    """One request: when, by whom, what, and after how many bytes of its answer the client leaves."""

    at_s: float
    name: str
    key: str | None
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    leaves_after_bytes: int | None = None
    leaves_at_s: float | None = None

    def raw(self) -> bytes:
        body = json.dumps(self.body).encode()
        heads = {"host": "golden", "content-type": "application/json", "content-length": str(len(body))} | self.headers
        if self.key is not None:
            heads["authorization"] = f"Bearer sk-{self.key}"
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True)
class Deed:
    """Something that is done to the fleet or the gateway."""

    at_s: float
    what: str
    """fault, stop, start, policy, reload, drain, undrain."""
    pod: int = 0
    said: dict[str, Any] = field(default_factory=dict)


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def body_of(path: str, model: str, prompt: str, tokens: int | None, *, stream: bool) -> dict[str, Any]:
    """A request in the words of its API."""
    body: dict[str, Any] = {"model": model, "stream": stream}
    match path:
        case "/v1/completions":
            body["prompt"] = prompt
        case "/v1/responses":
            body["input"] = prompt
        case _:
            body["messages"] = [{"role": "user", "content": prompt}]
    if tokens is not None or path == MESSAGES:
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = tokens or 40
    if stream and path in (CHAT, COMPLETIONS) and (tokens or 0) % 2:
        body["stream_options"] = {"include_usage": True}
    return body


TENANTS = ("gold", "silver", "bronze", "capped", "one", "many")


def everyday(chance: random.Random, count: int, until_s: float) -> list[Asked]:
    """Tenants with conversations that share beginnings, in all APIs."""
    beginnings = [text(chance, chance.choice((20, 200, 900))) for _ in range(8)]
    asked = []
    for number in range(count):
        path = chance.choice((CHAT, CHAT, CHAT, COMPLETIONS, RESPONSES, MESSAGES))
        model = chance.choice(("main", "main", "main", "auto", "split"))
        prompt = f"{chance.choice(beginnings)} {text(chance, chance.randint(2, 60))}"
        tokens = chance.choice((None, 8, 25, 41, 90))
        headers = {"x-session-id": f"s{chance.randint(1, 12)}"} if chance.random() < 0.4 else {}
        asked.append(
            Asked(
                at_s=round(chance.uniform(1.0, until_s), 4),
                name=f"day-{number}",
                key=chance.choice(TENANTS),
                path=path,
                body=body_of(path, model, prompt, tokens, stream=chance.random() < 0.65),
                headers=headers,
                leaves_after_bytes=chance.randint(200, 4_000) if chance.random() < 0.08 else None,
            )
        )
    return asked


def storm(chance: random.Random, at_s: float, count: int, leaves_at_s: float) -> list[Asked]:
    """Many at once, most of whom leave in one moment."""
    prompt = text(chance, 1_500)
    return [
        Asked(
            at_s=at_s,
            name=f"storm-{at_s:g}-{number}",
            key=TENANTS[number % 3],
            path=CHAT,
            body=body_of(CHAT, "main", f"{number} {prompt}", 60, stream=number % 4 != 0),
            leaves_at_s=leaves_at_s if number % 5 else None,
        )
        for number in range(count)
    ]


def oddities(at_s: float) -> list[Asked]:
    """What is rejected, or asked for in another way."""
    plain = body_of(CHAT, "main", "Hello there", 12, stream=False)
    said: list[tuple[str | None, str, dict[str, Any], dict[str, str]]] = [
        (None, CHAT, plain, {}),
        ("stranger", CHAT, plain, {}),
        ("gold", CHAT, plain | {"model": "nothing"}, {}),
        ("gold", CHAT, {"model": "main"}, {}),
        ("gold", CHAT, plain | {"messages": "x", "stream": 3}, {}),
        ("gold", CHAT, plain | {"n": 2}, {}),
        ("gold", CHAT, plain | {"kv_transfer_params": {"do_remote_prefill": True}}, {}),
        ("gold", CHAT, plain | {"model": "auto"}, {"x-hearth-cascade-prefer": "quality"}),
        ("gold", CHAT, plain | {"model": "auto", "n": 2}, {}),
        ("gold", CHAT, plain | {"model": "auto", "response_format": {"type": "json_object"}, "max_tokens": 3}, {}),
        ("gold", CHAT, plain | {"model": "auto"}, {"x-hearth-cascade-max-model": "small"}),
        ("narrow", CHAT, plain | {"model": "split"}, {}),
        ("gold", CHAT, plain | {"logprobs": True, "top_logprobs": 2, "model": "auto"}, {}),
        ("silver", "/v1/embeddings", {"model": "main", "input": "Hello"}, {}),
        ("silver", "/tokenize", {"model": "main", "prompt": "Hello there"}, {}),
        ("gold", MESSAGES, body_of(MESSAGES, "nothing", "Hi", 5, stream=True), {"anthropic-version": "2023-06-01"}),
        ("gold", RESPONSES, body_of(RESPONSES, "main", "Hi", 9, stream=False) | {"store": True}, {}),
    ]
    return [
        Asked(round(at_s + 0.05 * number, 3), f"odd-{number}", key, path, body, headers)
        for number, (key, path, body, headers) in enumerate(said)
    ]


def limits(at_s: float) -> list[Asked]:
    """More than is allowed: requests per minute, tokens, requests at a time."""
    body = body_of(CHAT, "main", "Tell me a story", 60, stream=True)
    burst = [Asked(round(at_s + 0.02 * n, 3), f"rpm-{n}", "capped", CHAT, body) for n in range(16)]
    together = [Asked(at_s + 1.0, f"parallel-{n}", "one", CHAT, body) for n in range(4)]
    long = [
        Asked(round(at_s + 2 + 0.3 * n, 3), f"tokens-{n}", "many", path, body_of(path, "main", "Go on", None, stream=s))
        for n, (path, s) in enumerate(((CHAT, True), (COMPLETIONS, True), (MESSAGES, True), (RESPONSES, True)) * 3)
    ]
    return burst + together + long


def pairs(chance: random.Random, at_s: float) -> list[Asked]:
    """Long prompts of a model whose prompts are computed elsewhere, while others of it are answered."""
    short = body_of(CHAT, "split", "Go on and on", 90, stream=True)
    asked = [Asked(round(at_s + 0.01 * n, 3), f"decoding-{n}", "gold", CHAT, short) for n in range(12)]
    for number, path in enumerate((CHAT, MESSAGES, COMPLETIONS, RESPONSES) * 3):
        prompt, stream = text(chance, 3_000), number % 3 != 0
        body = body_of(path, "split", f"{number} {prompt}", 20, stream=stream)
        asked.append(Asked(round(at_s + 0.4 + 0.15 * number, 3), f"pair-{number}", "gold", path, body))
    return asked


def all_asked(seed: int) -> list[Asked]:
    """The whole run."""
    chance = random.Random(seed)
    asked = everyday(chance, 150, 60.0)
    asked += oddities(6.0)
    asked += limits(15.0)
    asked += storm(chance, 30.0, 120, 31.5)
    asked += storm(chance, 34.0, 90, 34.0105)
    asked += storm(chance, 45.0, 60, 45.9)
    asked += pairs(chance, 57.5)
    return sorted(asked, key=lambda each: (each.at_s, each.name))


def envoy_asked(seed: int) -> list[Asked]:
    """A shorter run for the ext-proc filter."""
    chance = random.Random(seed + 1)
    asked = [each for each in everyday(chance, 60, 12.0) if each.body["model"] != "split"]
    odd = [each for each in oddities(3.0) if each.path != "/tokenize"]
    return sorted(asked + odd + storm(chance, 8.0, 30, 8.6), key=lambda each: (each.at_s, each.name))


DEEDS = (
    Deed(9.0, "fault", 0, {"kind": "cut", "after_chunks": 6}),
    Deed(11.0, "fault", 0),
    Deed(12.0, "fault", 1, {"kind": "error"}),
    Deed(13.0, "fault", 1),
    Deed(20.0, "stop", 2),
    Deed(24.0, "start", 2),
    Deed(26.0, "fault", 1, {"kind": "reset", "after_chunks": 10}),
    Deed(28.0, "fault", 1),
    Deed(29.0, "policy", said={"gold": {"rpm": 500}, "one": {"max_parallel_requests": 3}, "capped": {"rpm": 20}}),
    Deed(29.1, "reload"),
    Deed(36.0, "fault", 0, {"kind": "refuse"}),
    Deed(37.0, "fault", 0),
    Deed(38.0, "drain", 1),
    Deed(41.0, "undrain", 1),
    Deed(42.0, "fault", 2, {"kind": "slow", "factor": 8.0}),
    Deed(44.0, "fault", 2),
    Deed(48.0, "fault", 4, {"kind": "hang"}),
    Deed(52.0, "fault", 4),
    Deed(53.0, "fault", 5, {"kind": "error"}),
    Deed(55.0, "fault", 5),
    Deed(56.0, "policy", said={"one": {"max_parallel_requests": 1}, "bronze": {"rpm": 10}}),
    Deed(56.1, "reload"),
)

ENVOY_DEEDS = (
    Deed(4.0, "fault", 0, {"kind": "error"}),
    Deed(5.0, "fault", 0),
    Deed(6.0, "policy", said={"gold": {"rpm": 12}}),
    Deed(6.1, "reload"),
    Deed(9.0, "drain", 1),
    Deed(11.0, "undrain", 1),
)
"""Behind Envoy."""
