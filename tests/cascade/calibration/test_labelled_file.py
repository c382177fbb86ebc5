"""Labelled files: CSV, JSON lines, RouteLLM's tables, gzip, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.calibration.labelled_file import MAX_FAULTS, InvalidLabelledFile, read_labelled

CSV = b"""bucket,input_tokens,score@small,score@large,margin@small,length,output_tokens@small
maths,100,1,0.5,0.9,12,50
law,200,False,true,,13,
"""
JSONL = b"""{"prompt": "Hi", "rungs": {"small": {"score": 1, "margin": 0.5}, "large": {"score": true, "cost": 3}}}

{"rungs": {"large": {"score": 0}, "small": {"score": 0.25}}}
"""
ROUTELLM = b"""prompt,org/a,org/b,org/a_response,org/b_response
"How much,
is it?",True,False,"12345678","1234"
"""


def faults_of(raw: bytes, *models: str) -> str:
    with pytest.raises(InvalidLabelledFile) as rejected:
        read_labelled(raw, models)
    return "\n".join(rejected.value.faults)


@pytest.mark.parametrize("raw", [CSV, gzip.compress(CSV), b"\xef\xbb\xbf" + CSV])
def test_csv(raw: bytes) -> None:
    """Columns by model and plain ones; what is empty is not known."""
    read = read_labelled(raw)
    assert read.models == ("small", "large")
    assert read.signals == ("margin", "length")
    assert read.prompt_signals == {"length"}
    first, second = read.rows
    assert (first.bucket, first.input_tokens, first.scores) == ("maths", 100.0, (1.0, 0.5))
    assert first.signals["margin"][0] == 0.9
    assert second.scores == (0.0, 1.0)
    assert isnan(second.signals["margin"][0])
    assert second.signals["length"] == (13.0, 13.0)


def test_json_lines() -> None:
    """The order of models is that of the first line."""
    read = read_labelled(JSONL)
    assert read.models == ("small", "large")
    assert [row.scores for row in read.rows] == [(1.0, 1.0), (0.25, 0.0)]
    assert read.rows[0].costs[1] == 3.0
    assert read.rows[0].prompt == "Hi"


def test_routellms_table() -> None:
    """Verdicts by model; lengths from the answers beside them."""
    read = read_labelled(ROUTELLM)
    assert read.models == ("org/a", "org/b")
    assert read.rows[0].scores == (1.0, 0.0)
    assert read.rows[0].output_tokens == (2.0, 1.0)
    assert read.rows[0].prompt == "How much,\nis it?"


def test_models_may_be_picked_and_ordered() -> None:
    """By whoever knows the prices."""
    assert read_labelled(CSV, ("large", "small")).rows[0].scores == (0.5, 1.0)
    assert "model `middle`: has no scores" in faults_of(CSV, "small", "middle")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "two models or more"),
        (b"score@a,score@b\n", "there is no line"),
        (b"score@a\n1\n", "two models or more"),
        (b"score@a,score@b\n1,\n2,x\n1,-1\n", "line 2: score@b must be from 0 to 1, found ''"),
        (b"score@a,score@b\n1,1\n1\n", "line 3: score@b"),
        (b"bucket,score@a,score@b\n*,1,1\n", "line 2: bucket `*`"),
        (b'{"rungs": {}}\n{"rungs": 3}', "line 2: must be a mapping with `rungs`"),
        (b'{"rungs": {"a": {"score": 1}, "b": {"score": 1}}}\nnonsense', "line 2: no JSON"),
        (b"\x1f\x8b garbage", "neither text in UTF-8 nor gzip"),
        (b"score@a\xff", "neither text in UTF-8"),
        (b"score@a;score@b;margin@a\n1;1;0.5\n", "line 1: columns are separated by semicolons, and must be by commas"),
        (b"score@a\tscore@b\n1\t1\n", "line 1: columns are separated by tabs"),
        (b"score@a,score@b,score@a\n1,1,0\n", "line 1: column `score@a` stands twice"),
        (b"prompt,score@a,score@b\nOne, two,1,1\n", "line 2: has more cells than there are columns"),
        (b"prompt,score@a,score@b\n" + b"x" * 131_073 + b",1,1\n", "line 2: a field has more than 131,072 characters"),
        (b"score@a,score@b\n1,nan\n", "must be from 0 to 1, found 'nan'"),
    ],
)
def test_faults_name_their_line(raw: bytes, words: str) -> None:
    """And what was found there."""
    assert words in faults_of(raw)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0c", "\x1c"])
def test_json_lines_end_only_at_a_newline(mark: str) -> None:
    """Text may hold characters that Unicode counts as ends of lines; a carriage return before the newline is blank."""
    line = json.dumps({"prompt": f"One{mark}two", "rungs": {"a": {"score": 1}, "b": {"score": 1}}}, ensure_ascii=False)
    if mark in "\x0c\x1c":  # JSON wants these escaped in text, and allows none of them between values
        line = line.replace(mark, f"\\u{ord(mark):04x}")
    read = read_labelled(f"{line}\r\n{line}\n".encode())
    assert [row.prompt for row in read.rows] == [f"One{mark}two"] * 2


def test_a_model_is_named_once() -> None:
    """Twice would be a cascade of one model."""
    assert "model `large`: is named twice" in faults_of(CSV, "large", "large")


def test_many_faults_are_counted() -> None:
    """A file of another format does not scroll past."""
    reported = faults_of(b"score@a,score@b\n" + b"x,1\n" * 100)
    assert reported.count("line ") == MAX_FAULTS
    assert f"and {100 - MAX_FAULTS} more" in reported


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_whatever_the_bytes_the_error_is_ours(raw: bytes) -> None:
    """Nothing but a verdict on the file is raised."""
    for prefix in (b"", b"score@a,score@b\n", b'{"rungs": {'):
        try:
            read_labelled(prefix + raw)
        except InvalidLabelledFile as fault:
            assert fault.faults  # noqa: PT017 - either outcome is fine


def test_a_gzip_that_is_cut_short_is_rejected() -> None:
    """Its first lines are not the file; several gzips one behind the other are."""
    text = b"score@a,score@b,margin@a\n" + b"1,1,0.5\n" * 40 + b"0,1,0.25\n"
    complete = gzip.compress(text)
    with pytest.raises(InvalidLabelledFile, match="cut short"):
        read_labelled(complete[:-9])
    both = gzip.compress(text[:100]) + gzip.compress(text[100:])
    assert len(read_labelled(both).rows) == len(read_labelled(complete).rows) == 41
