"""The requests of another gateway as sizes, arrival times and numbered prefixes; no prompt is kept of them.

A prompt is cut into equal stretches of bytes. Each gets a number by the seeded hash of the prompt up to its end, so
that equal numbers are equal beginnings. When a later prompt is an earlier one with an answer behind it, the answer's
length is known, and which stretches an engine has of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from secrets import randbits

from xxhash import xxh3_64, xxh3_64_intdigest

from routing.reading.conversation import MESSAGE, open_message
from routing.reading.requests import DECODERS, read_request
from routing.rejection import RequestRejected
from routing.request import Api
from simulator.shadowing.readings import Seen
from simulator.traces import Arrival, Runs, Trace, gather_runs, make_trace, spread_runs

MAX_REQUESTS = 200_000
"""Of a recording; later ones are counted only."""

MAX_STRETCHES = 2_000_000
"""Different ones that are kept, about 130 bytes each; beyond it stretches get twice as long."""

STRETCH_BYTES = 32
"""About 8 tokens."""

MAX_BLOCKS = 256
"""Blocks of a mean prompt: an error of half a block per request is then below 0.2 %."""

DEFAULT_BYTES_PER_TOKEN = 4.0

DEFAULT_OUTPUT_TOKENS = 256
"""Of an answer, where pods report nothing."""

ANSWER = open_message("assistant")


@dataclass(slots=True)
class Row:
    """One request. `prefix` are the numbers of its full stretches."""

    at_s: float
    model: str
    size: int
    """Bytes of the prompt."""
    prefix: Runs
    limit: int | None
    """`max_tokens`."""
    session: str | None
    answer_size: int | None = None
    """Bytes of its answer, where a later prompt has it."""
    next_row: int | None = None
    """The first row whose prompt goes on from its answer."""


class Recording:
    """The requests received up to now."""

    def __init__(self, max_stretches: int = MAX_STRETCHES) -> None:
        self.rows: list[Row] = []
        self.skipped = 0
        """Requests that could not be read, or came after the last that is kept."""
        self._seed = randbits(63)
        self._max_stretches = max_stretches
        self._numbers: dict[int, int] = {}
        self._each = 1
        """Stretches are so many times `STRETCH_BYTES` long."""
        self._unanswered: dict[int, int] = {}
        """Rows by the hash of their whole prompt."""

    @property
    def stretch_bytes(self) -> int:
        """Return the length of a stretch now."""
        return STRETCH_BYTES * self._each

    def add(self, api: Api, body: bytes, session: str | None, at_s: float) -> None:
        """Add one request. `at_s`: any clock that only rises."""
        if len(self.rows) >= MAX_REQUESTS:
            self.skipped += 1
            return
        try:
            request = read_request(api, body, request_id="", session=session).request
        except RequestRejected:
            self.skipped += 1
            return
        out: list[bytes] = []
        DECODERS[api].decode(body)[0].write(out)
        text, seed = b"".join(out), request.prompt.seed ^ self._seed
        name = f"{xxh3_64_intdigest(request.session.encode(), self._seed):016x}" if request.session else None
        number = len(self.rows)
        self.rows.append(Row(at_s, request.model, len(text), self._prefix(text, seed), request.max_tokens, name))
        self._find_answers(text, seed, number)
        self._unanswered[xxh3_64_intdigest(text, seed)] = number
        while len(self._numbers) > self._max_stretches:
            self._coarsen()

    def _prefix(self, text: bytes, seed: int) -> Runs:
        numbers, known, parent = list[int](), self._numbers, seed
        for place, start in enumerate(range(0, len(text) - STRETCH_BYTES + 1, STRETCH_BYTES), 1):
            parent = xxh3_64_intdigest(text[start : start + STRETCH_BYTES], parent)
            if place % self._each == 0:
                numbers.append(known.setdefault(parent, len(known)))
        return gather_runs(numbers)

    def _find_answers(self, text: bytes, seed: int, number: int) -> None:
        """Note the answers in a prompt to earlier prompts that it goes on from."""
        digest, hashed = xxh3_64(seed=seed), 0
        at = text.find(ANSWER)
        while at >= 0:
            digest.update(text[hashed:at])
            hashed = at
            end = text.find(MESSAGE, at + 1)
            found = self._unanswered.pop(digest.intdigest(), None)
            if found is not None:
                row = self.rows[found]
                row.answer_size = (end if end >= 0 else len(text)) - at - len(ANSWER)
                row.next_row = number
            at = text.find(ANSWER, at + 1)

    def _coarsen(self) -> None:
        """Make stretches twice as long: every second one is dropped."""
        self._each *= 2
        fresh: dict[int, int] = {}
        for row in self.rows:
            kept = spread_runs(row.prefix)[1::2]
            row.prefix = gather_runs([fresh.setdefault(number, len(fresh)) for number in kept])
        self._numbers = {digest: fresh[number] for digest, number in self._numbers.items() if number in fresh}

    # --- As a trace ---------------------------------------------------------------------------------------------------

    def trace(self, seen: Seen, block_tokens: int | None = None) -> Trace:
        """Return the requests of the model with most of them, in tokens, as pods report bytes per token.

        `block_tokens`: of an engine's block; default 16. The trace's blocks are a multiple of it.
        """
        counts = Counter(row.model for row in self.rows)
        model = counts.most_common(1)[0][0] if counts else ""
        chosen = [number for number, row in enumerate(self.rows) if row.model == model]
        size = sum(self.rows[number].size for number in chosen)
        ratio = size / seen.prompt_tokens if seen.prompt_tokens else DEFAULT_BYTES_PER_TOKEN
        block = self._block_tokens(block_tokens or seen.block_size or 16, ratio, size / max(len(chosen), 1))
        grid = _Grid(ratio, self.stretch_bytes, block)
        outputs = self._outputs(chosen, ratio, seen)
        arrivals = []
        for number, output in zip(chosen, outputs, strict=True):
            row = self.rows[number]
            tokens = max(1, round(row.size / ratio))
            ids = grid.ids(row.prefix, tokens // block)
            if row.next_row is not None and len(ids) == tokens // block:
                # What is behind the prompt in the next one is the answer, and the engine has it.
                ids = grid.ids(self.rows[row.next_row].prefix, (tokens + output) // block)
            arrivals.append(Arrival(row.at_s, tokens, output, row.session, gather_runs(ids)))
        return make_trace("mirrored traffic", arrivals, block)

    def _block_tokens(self, engine_block: int, ratio: float, prompt_bytes: float) -> int:
        """A multiple of an engine's block, no shorter than a stretch, of which a mean prompt has at most 256."""
        block = engine_block
        while block * ratio < self.stretch_bytes or prompt_bytes / ratio > MAX_BLOCKS * block:
            block *= 2
        return block

    def _outputs(self, chosen: Sequence[int], ratio: float, seen: Seen) -> list[int]:
        """Lengths of answers: those that were read, one length for the others, and their sum as pods report it."""
        rows = [self.rows[number] for number in chosen]
        known = [None if row.answer_size is None else max(1, round(row.answer_size / ratio)) for row in rows]
        left = [row.limit or 1 << 30 for row, length in zip(rows, known, strict=True) if length is None]
        mean = DEFAULT_OUTPUT_TOKENS
        if seen.requests and left:
            total = seen.output_tokens * len(rows) / seen.requests - sum(length or 0 for length in known)
            mean = _level(left, total)
        return [
            min(mean if length is None else length, row.limit or 1 << 30)
            for row, length in zip(rows, known, strict=True)
        ]


def _level(limits: Sequence[int], total: float) -> int:
    """Return the length at which answers, each cut at its limit, have `total` tokens together; at least 1."""
    left, rest = len(limits), total
    for limit in sorted(limits):
        if limit * left >= rest:
            break
        rest -= limit
        left -= 1
    else:
        return max(limits)
    return max(1, round(rest / left))


class _Grid:
    """Gives equal ids to blocks of tokens behind equal beginnings."""

    def __init__(self, bytes_per_token: float, stretch_bytes: int, block_tokens: int) -> None:
        self._stretches_per_block = block_tokens * bytes_per_token / stretch_bytes
        self._ids: dict[tuple[int, int], int] = {}

    def ids(self, prefix: Runs, blocks: int) -> list[int]:
        """Return the ids of at most so many blocks, each known by the stretch that ends nearest to its end."""
        numbers = spread_runs(prefix)
        return list(self._found(numbers, blocks))

    def _found(self, numbers: Sequence[int], blocks: int) -> Iterator[int]:
        for block in range(1, blocks + 1):
            # The nearest end of a stretch: a token's bytes are a mean, so neither side is nearer to the truth.
            cover = max(round(block * self._stretches_per_block), 1) - 1
            if cover >= len(numbers):
                return
            yield self._ids.setdefault((numbers[cover], block), len(self._ids))
