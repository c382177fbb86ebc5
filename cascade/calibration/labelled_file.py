"""Labelled files: CSV or JSON lines, plain or gzip, and RouteLLM's tables; docs/cascade-calibration.md shows them.

Bytes in, `LabelledExamples` out; every fault is named with its line, the first `MAX_FAULTS` of them. Opens no file.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan

from cascade.calibration.examples import CHARACTERS_PER_TOKEN, LabelledExamples, LabelledRow
from cascade.calibration_file import ANY_BUCKET

MAX_BYTES = 1 << 29
"""Bytes, unpacked."""
MAX_FAULTS = 20
GZIP = b"\x1f\x8b"

BOOLEAN_SCORES = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
PROMPT_COLUMNS = ("bucket", "prompt", "input_tokens")
"""Columns about a line's prompt; other plain columns are signals of the prompt."""
ANSWER_COLUMNS = ("score", "output_tokens", "cost")
"""Columns about an answer, as NAME@MODEL; other names with a model are signals of the answer."""


class InvalidLabelledFile(ValueError):  # noqa: N818 - it carries a verdict on a file
    """A labelled file with faults, `line N: what is wrong` each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class LabelledLine:
    """One line, whatever the format: text of its prompt's cells, and cells by name and model."""

    number: int
    plain: Mapping[str, object]
    by_model: Mapping[tuple[str, str], object]


def read_labelled(raw: bytes, models: Sequence[str] = ()) -> LabelledExamples:
    """The whole file. `models` picks models and their order, cheapest first; else it is the order of the columns.

    Raises `InvalidLabelledFile`.
    """
    text = _unpacked(raw)
    lines = list(_json_lines(text) if text.lstrip()[:1] == "{" else _csv_lines(text))
    found = list(dict.fromkeys(model for line in lines for name, model in line.by_model if name == "score"))
    faults = [
        f"model `{model}`: has no scores; there are {', '.join(found) or 'none'}"
        for model in models
        if model not in found
    ]
    chosen = tuple(models) or tuple(found)
    faults += [f"model `{model}`: is named twice" for model in dict.fromkeys(chosen) if chosen.count(model) > 1]
    if len(chosen) < 2:
        faults.append("a ladder needs the scores of two models or more: columns `score@MODEL`")
    if not lines:
        faults.append("there is no line in it")
    if faults:
        raise InvalidLabelledFile(faults)
    return _labelled(lines, chosen)


def _labelled(lines: Sequence[LabelledLine], chosen: tuple[str, ...]) -> LabelledExamples:
    of_answers = {name: None for line in lines for name, model in line.by_model if model in chosen}
    of_prompts = {name: None for line in lines for name in line.plain if name not in PROMPT_COLUMNS}
    signals = [name for name in (*of_answers, *of_prompts) if name not in ANSWER_COLUMNS]
    faults: list[str] = []
    rows = [_row(line, chosen, signals, faults) for line in lines]
    if faults:
        raise InvalidLabelledFile(
            faults[:MAX_FAULTS] + ([f"and {len(faults) - MAX_FAULTS} more"] if faults[MAX_FAULTS:] else [])
        )
    return LabelledExamples(chosen, tuple(dict.fromkeys(signals)), rows, frozenset(of_prompts) - frozenset(of_answers))


def _row(line: LabelledLine, chosen: tuple[str, ...], signals: Iterable[str], faults: list[str]) -> LabelledRow:
    def numbers(name: str) -> tuple[float, ...]:
        return tuple(_number(line.by_model.get((name, model), line.plain.get(name))) for model in chosen)

    scores = numbers("score")
    for model, score in zip(chosen, scores, strict=True):
        if not 0.0 <= score <= 1.0:
            cell = line.by_model.get(("score", model))
            faults.append(f"line {line.number}: score@{model} must be from 0 to 1, found {_short(cell)}")
    bucket, prompt = line.plain.get("bucket"), line.plain.get("prompt")
    if bucket == ANY_BUCKET:
        faults.append(f"line {line.number}: bucket `{ANY_BUCKET}` stands for any; name another or leave it out")
    return LabelledRow(
        scores=scores,
        signals={name: numbers(name) for name in signals},
        bucket=str(bucket) if bucket not in (None, "") else None,
        prompt=str(prompt) if prompt is not None else None,
        input_tokens=_number(line.plain.get("input_tokens")),
        output_tokens=numbers("output_tokens"),
        costs=numbers("cost"),
    )


def _number(cell: object) -> float:
    """A finite number; nan for anything else."""
    if isinstance(cell, bool | int | float):
        value = float(cell)
    elif isinstance(cell, str):
        word = cell.strip().lower()
        try:
            value = BOOLEAN_SCORES[word] if word in BOOLEAN_SCORES else float(word)
        except ValueError:
            return nan
    else:
        return nan
    return value if isfinite(value) else nan


def _short(cell: object) -> str:
    shown = repr(cell)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _unpacked(raw: bytes) -> str:
    try:
        if raw[:2] == GZIP:
            raw = b"".join(_members(raw))
        if len(raw) > MAX_BYTES:
            raise InvalidLabelledFile([f"it has more than {MAX_BYTES:,} bytes"])
        return raw.decode("utf-8-sig")
    except (zlib.error, UnicodeDecodeError) as fault:
        raise InvalidLabelledFile([f"neither text in UTF-8 nor gzip of it: {fault}"]) from None


def _members(raw: bytes) -> Iterator[bytes]:
    """Gzip may be several, one behind the other. A truncated one is rejected."""
    room = MAX_BYTES + 1
    while raw and room > 0:
        opened = zlib.decompressobj(wbits=31)
        yield (unpacked := opened.decompress(raw, room))
        room -= len(unpacked)
        if room > 0 and not opened.eof:
            raise InvalidLabelledFile(["cut short: the gzip has no end"])
        raw = opened.unused_data


def _json_lines(text: str) -> Iterator[LabelledLine]:
    """{"bucket", "prompt", "input_tokens", SIGNAL, "rungs": {MODEL: {"score", "output_tokens", "cost", SIGNAL}}}"""
    # JSON text may hold U+2028 and other ends of lines that only `splitlines` knows.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise InvalidLabelledFile([f"line {number}: no JSON: {fault}"]) from None
        answers = row.pop("rungs", None) if isinstance(row, dict) else None
        if not isinstance(answers, dict) or not all(isinstance(answer, dict) for answer in answers.values()):
            raise InvalidLabelledFile(
                [f"line {number}: must be a mapping with `rungs`, a mapping of models to their answers"]
            )
        by_model = {(name, model): cell for model, answer in answers.items() for name, cell in answer.items()}
        yield LabelledLine(number, row, by_model)


def _csv_lines(text: str) -> Iterator[LabelledLine]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = list(rows.fieldnames or ())
        if faults := _column_faults(columns):
            raise InvalidLabelledFile(faults)
        by_routellm = [name for name in columns if f"{name}_response" in columns]
        has_scores = bool(by_routellm) or any(name.startswith("score@") for name in columns)
        for row in rows:
            cells = {name: cell for name, cell in row.items() if name is not None}
            if has_scores and any(row.get(None) or ()):  # where DictReader puts what has no column
                raise InvalidLabelledFile(
                    [f"line {rows.line_num}: has more cells than there are columns; is a comma unquoted?"]
                )
            yield _routellm(rows.line_num, cells, by_routellm) if by_routellm else _cells(rows.line_num, cells)
    except csv.Error as fault:
        if "field limit" in str(fault):
            words = f"a field has more than {csv.field_size_limit():,} characters; give long prompts as JSON lines"
            raise InvalidLabelledFile([f"line {rows.line_num + 1}: {words}"]) from None
        raise InvalidLabelledFile([f"line {rows.line_num + 1}: no CSV: {fault}"]) from None


SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Other than the comma, of which no column can be read."""


def _column_faults(columns: Sequence[str]) -> list[str]:
    for mark, words in SEPARATORS.items():
        if len(columns) == 1 and mark in columns[0] and "@" in columns[0]:
            return [f"line 1: columns are separated by {words}, and must be by commas"]
    return [f"line 1: column `{name}` stands twice" for name in dict.fromkeys(columns) if columns.count(name) > 1]


def _cells(number: int, row: Mapping[str, object]) -> LabelledLine:
    plain = {name: cell for name, cell in row.items() if "@" not in name}
    parted = {name.partition("@"): cell for name, cell in row.items() if "@" in name}
    return LabelledLine(number, plain, {(name, model): cell for (name, _, model), cell in parted.items()})


def _routellm(number: int, row: Mapping[str, object], models: Sequence[str]) -> LabelledLine:
    """A column of verdicts for each model, and one of its answers, by which their lengths are known."""
    by_model: dict[tuple[str, str], object] = {}
    for model in models:
        by_model["score", model] = row[model]
        by_model["output_tokens", model] = len(str(row[f"{model}_response"])) / CHARACTERS_PER_TOKEN
    return LabelledLine(number, {"prompt": row.get("prompt")}, by_model)
