"""Every published format is read into the same values, and a broken file is named by line."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.trace_figures import trace_figures
from simulator.trace_formats import SOURCES, TraceFault, load_trace
from simulator.traces import Arrival

MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 8]}
{"timestamp": 6000, "input_length": 1600, "output_length": 0, "hash_ids": [0, 7, 9, 10]}
"""

SHARED = """\
{"name": "tiny", "block_size": 512, "session_kind": "ids", "notes": "made by hand"}
{"t": 1.5, "s": 4, "in": 1600, "out": 7, "p": 0, "h": [[0, 1], [10, 2]]}
{"t": 2.0, "s": 5, "in": 600, "out": 8, "p": 0, "h": [[0, 1]]}

{"t": 4.0, "s": 4, "in": 2100, "out": 9, "p": 2, "h": [[30, 2]]}
"""

RAW = """\
{"name": "raw", "block_size": 64, "notes": "2 conversations, t relative per conversation, ids local per conversation"}
{"t": 0.0, "s": 0, "in": 200, "out": 1, "p": 0, "h": [[0, 3]]}
{"t": 5000.0, "s": 0, "in": 300, "out": 1, "p": 3, "h": [[3, 1]]}
{"t": 0.0, "s": 1, "in": 200, "out": 1, "p": 0, "h": [[0, 3]]}
{"t": 9.0, "s": 1, "in": 300, "out": 1, "p": 2, "h": [[5, 1]]}
"""

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.2299600,110,27
"""


def text_row(at_us: int, prompt: str, session: str) -> str:
    return f'{{"timestamp": {at_us}, "input": "{prompt}", "output": "{"x" * 40}", "session_id": "{session}"}}\n'


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str, name: str = "tiny.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_mooncake_rows_keep_full_blocks_only(write: Write) -> None:
    """Times turn to seconds from the first arrival; the id of a block that is not full is left out."""
    trace = load_trace(write(MOONCAKE))
    assert trace.block_tokens == 512
    assert trace.arrivals == (
        Arrival(0.0, 1100, 5, None, ((0, 1), (7, 1))),
        Arrival(3.0, 1600, 1, None, ((0, 1), (7, 1), (9, 1))),
    )
    assert trace.arrivals[1].blocks == (0, 7, 9)
    assert trace.arrivals[1].finer(2) == (0, 1, 14, 15, 18, 19)


def test_a_gzipped_trace_reads_the_same(write: Write, tmp_path: Path) -> None:
    """Plain or packed makes no difference."""
    packed = tmp_path / "tiny.jsonl.gz"
    packed.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert load_trace(packed).arrivals == load_trace(write(MOONCAKE)).arrivals


def test_shared_rows_build_on_the_request_before(write: Write) -> None:
    """`p` counts blocks of the session's previous request, whoever came between."""
    trace = load_trace(write(SHARED))
    assert (trace.name, trace.block_tokens, trace.length_s) == ("tiny", 512, 2.5)
    assert [one.session for one in trace.arrivals] == ["4", "5", "4"]
    assert [one.blocks for one in trace.arrivals] == [(0, 10, 11), (0,), (0, 10, 30, 31)]


def test_conversations_with_clocks_of_their_own_are_started_at_random(write: Write) -> None:
    """Local ids never meet, pauses are bounded, and the seed alone decides when each begins."""
    path = write(RAW)
    trace = load_trace(path, seed=1)
    by_session = {name: [one for one in trace.arrivals if one.session == name] for name in ("0", "1")}
    assert by_session["0"][1].at_s - by_session["0"][0].at_s == pytest.approx(300.0)
    assert by_session["1"][1].at_s - by_session["1"][0].at_s == pytest.approx(9.0)
    assert not set(by_session["0"][0].blocks) & set(by_session["1"][0].blocks)
    assert by_session["1"][1].blocks[:2] == by_session["1"][0].blocks[:2]
    assert trace == load_trace(path, seed=1) != load_trace(path, seed=2)


def test_text_is_cut_into_blocks_of_equal_prefixes(write: Write) -> None:
    """Four characters are a token, 16 tokens a block; a block behind another prefix is another block."""
    same, other = "a" * 64, "b" * 64
    rows = [
        text_row(1_000_000, same + same + "rest", "x"),
        text_row(3_500_000, same + other, "x"),
        text_row(4_000_000, other + same, "y"),
    ]
    trace = load_trace(write("".join(rows)))
    assert [one.at_s for one in trace.arrivals] == [0.0, 2.5, 3.0]
    assert [(one.prompt_tokens, one.output_tokens) for one in trace.arrivals] == [(33, 10), (32, 10), (32, 10)]
    assert [one.blocks for one in trace.arrivals] == [(0, 1), (0, 2), (3, 4)]


def test_azure_rows_have_lengths_and_no_prefixes(write: Write) -> None:
    """Seven digits of a second are read; nothing is known to be shared."""
    trace = load_trace(write(AZURE, "code.csv"))
    assert trace.block_tokens is None
    assert [one.at_s for one in trace.arrivals] == pytest.approx([0.0, 0.25])
    assert [(one.prompt_tokens, one.output_tokens, one.blocks) for one in trace.arrivals] == [
        (4808, 10, ()),
        (110, 27, ()),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "tiny.jsonl:1: no known format"),
        ('{"what": "is this"}\n', "tiny.jsonl:1: no known format"),
        (MOONCAKE + "{\n", "tiny.jsonl:3: "),
        (MOONCAKE.replace("1600", '"many"'), r"tiny.jsonl:2: .*input_length"),
        (SHARED.replace('"p": 2', '"p": 4'), r"tiny.jsonl:5: `p` is 4, but the session's request before had 3"),
        (SHARED.replace("2100", "2000"), r"tiny.jsonl:5: more blocks of 512 than fit into 2000 tokens"),
        (SHARED.splitlines()[0] + '\n{"t": 1}\n', r"tiny.jsonl:2: .*missing"),
        (AZURE.replace("4808", "x"), "tiny.jsonl:2: ValueError"),
        (AZURE + "yesterday,1,1\n", "tiny.jsonl:4: ValueError"),
        (AZURE + "2023-11-16 18:17:05.1\n", "tiny.jsonl:4: TypeError"),
    ],
)
def test_a_broken_file_is_named_by_line(write: Write, text: str, fault: str) -> None:
    """A wrong row is one clear sentence with file and line, whatever is wrong with it."""
    with pytest.raises(TraceFault, match=fault):
        load_trace(write(text))


def test_bytes_that_are_no_text_or_no_gzip_are_one_sentence_too(tmp_path: Path) -> None:
    """What the operating system or gzip says is passed on with the file's name."""
    for name, content in (
        ("a.jsonl", b"\xff\xfe\x00"),
        ("b.jsonl.gz", b"no gzip"),
        ("c.jsonl.gz", gzip.compress(b"x" * 9999)[:20]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceFault, match=name):
            load_trace(tmp_path / name)


def test_an_absent_trace_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public repositories are named, and a folder named by TRACES is looked into."""
    monkeypatch.setenv("TRACES", str(tmp_path))
    with pytest.raises(TraceFault, match=r"github\.com/kvcache-ai/Mooncake"):
        load_trace(Path("tiny.jsonl"))
    (tmp_path / "tiny.jsonl").write_text(MOONCAKE, encoding="utf-8")
    assert len(load_trace(Path("tiny.jsonl")).arrivals) == 2
    assert SOURCES.count("github.com") == 4


PUBLISHED = {
    "mooncake_conversation_trace.jsonl.gz": (12_031, 6_909, 0.373),
    "claudecode_dev.jsonl.gz": (5_058, 86_000, 0.951),
    "lmcache_magagent.jsonl.gz": (746, 1_190, 0.84),
    "lmcache_magagent_text.jsonl.gz": (746, 1_190, 0.84),
    "azure2023_code.csv.gz": (8_819, 1_469, 0.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_traces_have_their_published_figures(name: str) -> None:
    """Requests, median prompt and reuse come out as their authors and our notes state them."""
    path = Path(os.environ.get("TRACES", "../shared/traces")) / name
    if not path.is_file():
        pytest.skip(f"no {path}: TRACES=FOLDER says where the public traces are")
    requests, prompt, reuse = PUBLISHED[name]
    figures = trace_figures(load_trace(path))
    assert figures.requests == requests
    assert figures.prompt_tokens.p50 == pytest.approx(prompt, rel=0.01)
    assert figures.reuse == pytest.approx(reuse, abs=0.005)
