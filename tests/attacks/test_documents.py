"""Short documents cannot take long: YAML that an operator's pipeline writes, JSON that any client sends.

Times and memory are ratios to a plain document of the same length, measured in the same process, the best of several.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.commands.check import find_config_errors
from gateway.discovery.file import parse_pods
from gateway.identity.policy import load_policy_file
from routing.reading import read_request
from routing.rejection import RequestRejected
from routing.request import Api
from tenancy.document import InvalidDocument, InvalidValue

TIMES = 3


def seconds(work: Callable[[], object]) -> float:
    """The best of several runs, in CPU time of this thread."""
    found = []
    for _ in range(TIMES):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


def peak_bytes(work: Callable[[], object]) -> int:
    """What was allocated at once, at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def outcome(work: Callable[[], object]) -> Callable[[], bool]:
    """The same, and whether it was refused."""

    def tried() -> bool:
        try:
            work()
        except (InvalidDocument, InvalidValue, RequestRejected):
            return True
        return False

    return tried


def laughs(levels: int) -> str:
    """Lists of nine aliases each of the list before: 9 ** levels values in fifty bytes a level."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, levels)]
    return "\n".join(lines)


def merges(levels: int) -> str:
    """Mappings that merge nine of the mapping before."""
    lines = ["a0: &a0 {b: 1, c: 2, d: 3, e: 4}"]
    lines += [f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 9)}], f{at}: 1}}" for at in range(1, levels)]
    return "\n".join(lines)


BOMBS = {
    "aliases": laughs(9),
    "merges": merges(9),
    "deep aliases": laughs(60),
    "an alias of itself": "a: &a {b: *a, c: [*a, *a]}",
    "a merge of itself": "a: &a {<<: *a}",
    "a long text again and again": f"a: &a {'x' * 8_000}\nb: [{', '.join(['*a'] * 2_000)}]",
    "sixties": "a: 1" + ":59" * 4_000,
    "digits": "a: " + "9" * 12_000,
    "brackets": "a: " + "[" * 4_000,
}

MOST = 20
"""Times what a plain document of the same length takes, or of a few kilobytes where the attack is shorter."""


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("kind", ["policy", "configuration", "pods"])
def test_yaml_takes_what_its_length_allows(tmp_path: Path, kind: str, bomb: str) -> None:
    """A reload with it, `hearth policy check`, `hearth config check` and the list of pods: refused, and quickly."""
    file = tmp_path / "file.yaml"

    def read() -> object:
        if kind == "policy":
            return load_policy_file(file, {}, None)
        if kind == "configuration":
            if faults := find_config_errors(file, {}):
                raise InvalidDocument(faults)
            return None
        return parse_pods(file.read_text())

    text = BOMBS[bomb]
    file.write_text(plain_yaml(len(text)))
    tried = outcome(read)
    plain_s, plain_bytes = seconds(tried), peak_bytes(tried)
    file.write_text(text)
    assert tried()
    assert seconds(tried) < MOST * plain_s
    assert peak_bytes(tried) < MOST * plain_bytes


def plain_yaml(length: int) -> str:
    """A document of at least so many characters, with keys of its own each."""
    lines = ["tenants:\n"]
    size, at = 0, 0
    while size < max(length, 4_000):
        lines.append(f"  tenant{at}: {{rpm: {at + 1}, weight: 2}}\n")
        size += len(lines[-1])
        at += 1
    return "".join(lines)


def chat(fields: str) -> bytes:
    return f'{{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}], {fields}}}'.encode()


def plain_chat(length: int) -> bytes:
    return chat(f'"user": "{"plain words of a user " * (length // 22 + 1)}"')


JSON_ATTACKS = {
    "an integer without end": chat(f'"seed": {"9" * 500_000}'),
    "many long integers": chat('"logit_bias": [' + ",".join(["9" * 4_301] * 100) + "]"),
    "digits in a text": chat(f'"user": "{"9" * 500_000}"'),
    "almost long integers": chat('"x": [' + ",".join(["9" * 4_300] * 100) + "]"),
    "a prompt behind another": chat(
        f'"messages": [{{"role": "user", "content": "{"hello " * 80_000}"}}], "messages": []'
    ),
    "ten thousand fields": chat(",".join(f'"f{at}": 1' for at in range(30_000))),
    "one field ten thousand times": chat(",".join(['"n": 1'] * 50_000)),
    "names in escapes": chat('"user": "' + "\\u006d" * 60_000 + '"'),
    "names in texts": chat('"stop": [' + ",".join(['"messages"'] * 40_000) + "]"),
}

REFUSED = {
    "an integer without end": "seed",
    "many long integers": "logit_bias",
    "a prompt behind another": "messages",
    "one field ten thousand times": "n",
}


@pytest.mark.parametrize("attack", JSON_ATTACKS)
def test_json_takes_what_its_length_allows(attack: str) -> None:
    """Read or refused by name, in a few times what a body of the same length takes whose text is looked through."""
    body = JSON_ATTACKS[attack]
    usual = plain_chat(len(body))
    listed = b'{"model": "m", "x": [' + b",".join([b'"ab"'] * (len(body) // 5)) + b"]}"

    def read(raw: bytes) -> Callable[[], bool]:
        return outcome(lambda: read_request(Api.CHAT, raw, request_id="r"))

    plain_s = max(seconds(read(usual)), seconds(read(listed)))
    assert seconds(read(body)) < 100 * plain_s
    assert peak_bytes(read(body)) < 40 * len(body)
    if attack in REFUSED:
        with pytest.raises(RequestRejected) as rejected:
            read_request(Api.CHAT, body, request_id="r")
        assert rejected.value.param == REFUSED[attack]
    else:
        assert not read(body)()


def test_a_plain_body_is_read_as_fast_as_its_length_grows() -> None:
    """A hundred times the bytes take no more than some hundred times the time: nothing looks back."""
    small, large = plain_chat(10_000), plain_chat(1_000_000)
    small_s = seconds(lambda: [read_request(Api.CHAT, small, request_id="r") for _ in range(100)])
    large_s = seconds(lambda: read_request(Api.CHAT, large, request_id="r"))
    assert large_s < 10 * small_s
