"""Labelled files: CSV or JSON lines, plain or gzip, and RouteLLM's tables; docs/cascade-calibration.md shows them.

Bytes in, `LabelledExamples` out; every fault is named with its line, the first `MAX_FAULTS` of them. Opens no file.
"""

from __future__ import annotations

import codecs
import csv
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite, isnan, nan
from typing import TypeVar, cast

from cascade.calibration.examples import (
    CHARACTERS_PER_TOKEN,
    LabelledExamples,
    LabelledRow,
    RowLabel,
    SignalValues,
)
from cascade.calibration.label_errors import with_label_errors
from cascade.calibration.labelling import TRUE_SOURCES, LabelSource
from cascade.calibration_file import ANY_BUCKET, Comparison, SignalStage

MAX_BYTES = 1 << 29
"""Bytes, unpacked."""
MAX_FAULTS = 20
GZIP = b"\x1f\x8b"

BOOLEAN_SCORES = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
PROMPT_COLUMNS = ("bucket", "prompt", "input_tokens", "group", "label", "stage", "request")
"""Columns about a line's prompt and how it was labelled; other plain columns are signals of the prompt."""
LABEL_COLUMNS = ("loss", "verdict")
"""Columns of a collected answer; where `label` is no true label they stand for its score."""
OUTCOME_COLUMNS = {"text_outcome": Comparison.TEXT, "judge_outcome": Comparison.JUDGE}
"""How an answer compares with the next model's: 1 worse (by text: different), 0 alike, -1 better."""
ANSWER_COLUMNS = ("score", "output_tokens", "cost", *LABEL_COLUMNS, *OUTCOME_COLUMNS)
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
    is_json = text.lstrip()[:1] == b"{"

    def lines() -> Iterator[LabelledLine]:
        return _json_lines(text) if is_json else _csv_lines(text)

    columns = _columns(lines())
    # A collected file names its models by their answers: rows without a true label have no scores.
    has_score = "output_tokens" if "label" in columns.plain else "score"
    found = list(dict.fromkeys(model for name, model in columns.by_model if name == has_score))
    faults = [
        f"model `{model}`: has no scores; there are {', '.join(found) or 'none'}"
        for model in models
        if model not in found
    ]
    chosen = tuple(models) or tuple(found)
    faults += [f"model `{model}`: is named twice" for model in dict.fromkeys(chosen) if chosen.count(model) > 1]
    if len(chosen) < 2:
        faults.append("a ladder needs the scores of two models or more: columns `score@MODEL`")
    if not columns.lines:
        faults.append("there is no line in it")
    if faults:
        raise InvalidLabelledFile(faults)
    return _labelled(lines(), columns, chosen)


@dataclass(slots=True)
class _Columns:
    """Names of all columns, in their order, and the number of lines."""

    by_model: dict[tuple[str, str], None]
    plain: dict[str, None]
    lines: int = 0


def _columns(lines: Iterable[LabelledLine]) -> _Columns:
    found = _Columns({}, {})
    for line in lines:
        found.lines += 1
        found.by_model.update(dict.fromkeys(line.by_model))
        found.plain.update(dict.fromkeys(line.plain))
    return found


def _labelled(lines: Iterable[LabelledLine], columns: _Columns, chosen: tuple[str, ...]) -> LabelledExamples:
    of_answers = {name: None for name, model in columns.by_model if model in chosen}
    of_prompts = {name: None for name in columns.plain if name not in PROMPT_COLUMNS}
    signals = tuple(name for name in dict.fromkeys((*of_answers, *of_prompts)) if name not in ANSWER_COLUMNS)
    outcomes = tuple(name for name in OUTCOME_COLUMNS if name in of_answers)
    reader = _RowReader(chosen, signals, outcomes)
    rows = [reader.row(line) for line in lines]
    faults = reader.faults
    if faults:
        raise InvalidLabelledFile(
            faults[:MAX_FAULTS] + ([f"and {len(faults) - MAX_FAULTS} more"] if faults[MAX_FAULTS:] else [])
        )
    labelled = LabelledExamples(
        chosen, signals, rows, frozenset(of_prompts) - frozenset(of_answers), stage=reader.stage
    )
    return with_label_errors(labelled)


MAX_SHARED = 4_096
"""Distinct tuples that rows share: scores and missing values repeat, and a million rows shall fit into memory."""


class _RowReader:
    """Makes rows of lines; collects faults."""

    def __init__(self, chosen: tuple[str, ...], signals: tuple[str, ...], outcomes: tuple[str, ...]) -> None:
        self.faults: list[str] = []
        self._chosen, self._signals, self._outcomes = chosen, signals, outcomes
        self._shared: dict[object, object] = {}
        self.stage: SignalStage | None = None
        """When all lines' signals were taken; None where they do not state it."""

    def row(self, line: LabelledLine) -> LabelledRow:
        scores = self._numbers(line, "score")
        label = self._label(line)
        self._read_stage(line)
        for model, score in zip(self._chosen, scores, strict=True):
            if not 0.0 <= score <= 1.0 and (label is None or label.source in TRUE_SOURCES):
                cell = line.by_model.get(("score", model))
                self.faults.append(f"line {line.number}: score@{model} must be from 0 to 1, found {_short(cell)}")
        bucket, prompt, group = line.plain.get("bucket"), line.plain.get("prompt"), line.plain.get("group")
        if bucket == ANY_BUCKET:
            self.faults.append(
                f"line {line.number}: bucket `{ANY_BUCKET}` stands for any; name another or leave it out"
            )
        key = prompt if group in (None, "") else group
        return LabelledRow(
            scores=scores,
            signals=SignalValues(self._signals, tuple(self._numbers(line, name) for name in self._signals)),
            bucket=self._share(str(bucket)) if bucket not in (None, "") else None,
            prompt=str(prompt) if prompt is not None else None,
            input_tokens=_number(line.plain.get("input_tokens")),
            output_tokens=self._numbers(line, "output_tokens"),
            costs=self._numbers(line, "cost"),
            group=0 if key is None else group_of(str(key)),
            outcomes={OUTCOME_COLUMNS[name]: self._verdicts(line, name) for name in self._outcomes} or None,
            label=label,
        )

    def _label(self, line: LabelledLine) -> RowLabel | None:
        source = line.plain.get("label")
        if source in (None, ""):
            return None
        if source not in set(LabelSource):
            self.faults.append(f"line {line.number}: label must be one of {', '.join(LabelSource)}")
            return None
        losses = self._numbers(line, "loss")
        for model, loss in zip(self._chosen, losses, strict=True):
            if not (isnan(loss) or 0.0 <= loss <= 1.0):
                self.faults.append(f"line {line.number}: loss@{model} must be from 0 to 1, found {loss:g}")
        return RowLabel(str(source), losses, self._verdicts(line, "verdict"))

    def _read_stage(self, line: LabelledLine) -> None:
        stated = line.plain.get("stage")
        if stated in (None, ""):
            return
        if stated not in set(SignalStage):
            self.faults.append(f"line {line.number}: stage must be one of {', '.join(SignalStage)}")
        elif self.stage is None:
            self.stage = SignalStage(str(stated))
        elif self.stage != stated:
            self.faults.append(f"line {line.number}: stage is {stated}, and {self.stage} before; use one file for each")

    def _numbers(self, line: LabelledLine, name: str) -> tuple[float, ...]:
        plain = line.plain.get(name)
        return self._share(tuple(_number(line.by_model.get((name, model), plain)) for model in self._chosen))

    def _verdicts(self, line: LabelledLine, name: str) -> tuple[float, ...]:
        found = self._numbers(line, name)
        for model, outcome in zip(self._chosen, found, strict=True):
            if abs(outcome) > 1.0:
                self.faults.append(f"line {line.number}: {name}@{model} must be -1, 0 or 1, found {outcome:g}")
        return found

    def _share(self, value: T) -> T:
        if len(self._shared) < MAX_SHARED:
            return cast("T", self._shared.setdefault(value, value))
        return cast("T", self._shared.get(value, value))


T = TypeVar("T")


def group_of(key: str) -> int:
    """Return a number of 62 bits for a key: rows with one key depend on each other. Never 0."""
    return 1 + (int.from_bytes(blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 2)


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
    return SHARED_NUMBERS.get(value, value) if isfinite(value) else nan


SHARED_NUMBERS = {number: number for number in (0.0, 0.5, 1.0)}
"""Numbers of which many rows need one object only."""


def _short(cell: object) -> str:
    shown = repr(cell)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _unpacked(raw: bytes) -> bytes:
    try:
        if raw[:2] == GZIP:
            raw = b"".join(_members(raw))
    except zlib.error as fault:
        raise _no_text(fault) from None
    if len(raw) > MAX_BYTES:
        raise InvalidLabelledFile([f"it has more than {MAX_BYTES:,} bytes"])
    return raw.removeprefix(codecs.BOM_UTF8)


def _no_text(fault: Exception) -> InvalidLabelledFile:
    return InvalidLabelledFile([f"neither text in UTF-8 nor gzip of it: {fault}"])


def _lines(raw: bytes) -> Iterator[str]:
    """The lines with their ends, one at a time: text of a million of them need not be in memory twice."""
    end = b"\r" if b"\n" not in raw and b"\r" in raw else b"\n"
    start, size = 0, len(raw)
    while start < size:
        found = raw.find(end, start)
        after = size if found < 0 else found + 1
        try:
            line = raw[start:after].decode()
        except UnicodeDecodeError as fault:
            raise _no_text(fault) from None
        yield line if end == b"\n" else line.replace("\r", "\n")
        start = after


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


def _json_lines(text: bytes) -> Iterator[LabelledLine]:
    """{"bucket", "prompt", "input_tokens", SIGNAL, "rungs": {MODEL: {"score", "output_tokens", "cost", SIGNAL}}}"""
    # JSON text may hold U+2028 and other ends of lines that only `splitlines` knows.
    for number, line in enumerate(_lines(text), start=1):
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


def _csv_lines(text: bytes) -> Iterator[LabelledLine]:
    rows = csv.DictReader(_lines(text))
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
