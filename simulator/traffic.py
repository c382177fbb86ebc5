"""Sends conversations of a few users to a gateway until it is stopped, so that dashboards show traffic.

A command: `python -m simulator.traffic`. `--turns N` ends it after N requests.
"""

import argparse
import itertools
import json
import random
import threading
import urllib.error
import urllib.request

USERS = 4

PAUSE_S = 1.0

MAX_TURNS = 8
"""Of one conversation; then the user begins another."""

ASSISTANT = "You are the assistant of a small shop. " * 40


def send(url: str, key: str, model: str, messages: list[dict[str, str]]) -> str:
    """Return the answer of one request. Raises `OSError`."""
    body = {"model": model, "messages": messages, "max_tokens": 64}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - the address is the operator's own
        found: str = json.load(answer)["choices"][0]["message"]["content"] or ""
    return found


def converse(options: argparse.Namespace, user: int, stop: threading.Event, numbers: "itertools.count[int]") -> None:
    """One user: turn after turn of one conversation after another."""
    draw = random.Random(user)
    messages: list[dict[str, str]] = []
    while not stop.is_set():
        number = next(numbers)
        if options.turns and number > options.turns:
            return
        if not messages or len(messages) > 2 * MAX_TURNS:
            messages = [{"role": "system", "content": ASSISTANT}]
        messages.append({"role": "user", "content": f"Question {number}: what is {draw.randrange(100)} times seven?"})
        try:
            messages.append({"role": "assistant", "content": send(options.url, options.key, options.model, messages)})
        except OSError as error:
            print(f"request {number}: {error}", flush=True)
            messages.pop()
        stop.wait(draw.uniform(0, 2 * PAUSE_S))


def main() -> None:
    """Run all users."""
    parser = argparse.ArgumentParser(prog="python -m simulator.traffic", description="Send conversations to a gateway.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--model", required=True)
    parser.add_argument("--turns", type=int, default=0, help="end after N requests (default: never)")
    options, stop, numbers = parser.parse_args(), threading.Event(), itertools.count(1)
    users = [threading.Thread(target=converse, args=(options, user, stop, numbers)) for user in range(USERS)]
    for user in users:
        user.start()
    try:
        for user in users:
            user.join()
    except KeyboardInterrupt:
        stop.set()


if __name__ == "__main__":
    main()
