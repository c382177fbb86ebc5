"""`hearth spend` adds up usage records of any age and packing, and says what it could not read."""

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.commands import usage_log
from gateway.commands.spend import rotated_files


def a_record(**changes: Any) -> bytes:
    record: dict[str, Any] = {
        "schema": 2,
        "timestamp": "2026-11-27T23:30:00.000Z",
        "request_id": "r",
        "tenant": "legal",
        "user": "ann",
        "group": None,
        "model": "tiny",
        "input_tokens": 100,
        "cached_input_tokens": 60,
        "output_tokens": 10,
        "input_cost": 1.0,
        "output_cost": 0.5,
        "cost": 1.5,
        "cascade": None,
    }
    return json.dumps(record | changes).encode() + b"\n"


def spend(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["spend", "--format", "json", *map(str, words)]) == 0
    return dict(json.loads(capsys.readouterr().out))


def by(report: dict[str, Any], figure: str) -> dict[tuple[str, ...], Any]:
    return {tuple(row[name] for name in report["by"]): row[figure] for row in report["rows"]}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Records of two tenants, days and models."""
    path = tmp_path / "usage.jsonl"
    path.write_bytes(
        a_record()
        + a_record(timestamp="2026-11-28T00:30:00+02:00", user=None, model="big", cost=None, input_cost=2.0)
        + a_record(tenant="sales", group="emea", timestamp="2026-11-28T10:00:00Z")
        + a_record(tenant=None, input_tokens=None, cached_input_tokens=None, output_tokens=None, cost=None,
                   input_cost=None, output_cost=None)
    )  # fmt: skip
    return path


def test_sums_are_grouped_by_what_is_asked_for(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Days are UTC; without a tenant, group or user the row says so."""
    report = spend(capsys, log)
    assert by(report, "requests") == {("legal",): 2, ("sales",): 1, ("(none)",): 1}
    assert by(report, "cost") == {("legal",): 4.0, ("sales",): 1.5, ("(none)",): 0.0}
    assert report["total"] == {
        "requests": 4,
        "input_tokens": 300,
        "cached_input_tokens": 180,
        "output_tokens": 30,
        "cost": 5.5,
        "unpriced_requests": 0,
    }
    days = spend(capsys, log, "--by", "day,model")
    assert by(days, "requests") == {("2026-11-27", "big"): 1, ("2026-11-27", "tiny"): 2, ("2026-11-28", "tiny"): 1}
    assert by(spend(capsys, log, "--by", "group,user"), "output_tokens") == {
        ("(none)", "(none)"): 10,
        ("(none)", "ann"): 10,
        ("emea", "ann"): 10,
    }


def test_bounds_and_filters_select(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The end of a period is not in it."""
    assert spend(capsys, log, "--since", "2026-11-28")["total"]["requests"] == 1
    assert spend(capsys, log, "--until", "2026-11-28T10:00:00Z")["total"]["requests"] == 3
    assert spend(capsys, log, "--tenant", "legal", "--model", "big")["total"]["cost"] == 2.5


def test_a_cascade_costs_what_all_its_models_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By model each has its own; the request and its tokens belong to the one that answered."""
    steps = [{"model": "tiny", "cost": 0.25}, {"model": "big", "cost": 2.0}]
    record = a_record(model="big", cost=2.25, cascade={"cascade": "auto", "cost": 2.25, "steps": steps})
    (tmp_path / "usage.jsonl").write_bytes(record)
    report = spend(capsys, tmp_path / "usage.jsonl", "--by", "model")
    assert by(report, "cost") == {("big",): 2.0, ("tiny",): 0.25}
    assert by(report, "requests") == {("big",): 1, ("tiny",): 0}
    assert spend(capsys, tmp_path / "usage.jsonl")["total"]["cost"] == 2.25


def test_rotated_and_compressed_files_are_read(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each once: of a file and its compressed copy the file. Files of other names are not."""
    for name, packed in {
        "usage.jsonl.1": a_record(),
        "usage.jsonl.1.gz": gzip.compress(a_record()),
        "usage.jsonl.2.gz": gzip.compress(a_record()),
        "usage-20261120.jsonl.xz": lzma.compress(a_record()),
        "usage.jsonl-20261119.bz2": bz2.compress(a_record()),
        "usage-notes.txt": b"no",
        "other.jsonl": a_record(),
    }.items():
        (log.parent / name).write_bytes(packed)
    assert {path.name for path in rotated_files(log)} == {
        *("usage.jsonl", "usage.jsonl.1", "usage.jsonl.2.gz", "usage-20261120.jsonl.xz", "usage.jsonl-20261119.bz2")
    }
    assert spend(capsys, log, log)["total"]["requests"] == 8
    assert spend(capsys, log, "--only-named")["total"]["requests"] == 4


def test_a_csv_has_every_figure(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As spreadsheets read it."""
    assert main(["spend", str(log), "--format", "csv", "--by", "tenant,model"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["tenant"], row["model"], row["cost"]) for row in rows] == [
        ("(none)", "tiny", "0.0"),
        ("legal", "big", "2.5"),
        ("legal", "tiny", "1.5"),
        ("sales", "tiny", "1.5"),
    ]


def test_a_table_ends_with_the_total(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people."""
    assert main(["spend", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("TENANT", "REQUESTS", "INPUT_TOKENS", "CACHED_INPUT_TOKENS", "OUTPUT_TOKENS", "COST", "UNPRICED_REQUESTS")
    ]
    assert lines[-1].split() == ["total", "4", "300", "180", "30", "5.500000", "0"]


def test_what_has_no_price_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tokens are in the sum, its cost is not."""
    (tmp_path / "usage.jsonl").write_bytes(a_record(cost=None, input_cost=None, output_cost=None))
    total = spend(capsys, tmp_path / "usage.jsonl")["total"]
    assert (total["input_tokens"], total["cost"], total["unpriced_requests"]) == (100, 0.0, 1)


def test_lines_that_cannot_be_read_are_counted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is still being written; lines of the request log are none of usage."""
    with log.open("ab") as more:
        more.write(b'{"event": "request_completed", "request_id": "r", "tenant": "legal"}\n{"schema": 2, "tim')
    assert main(["spend", str(log), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["total"]["requests"] == 4
    assert err == "hearth: 1 lines could not be read, and are not in the sums\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["none.jsonl"], "none.jsonl: No such file"),
        (["--by", "tenants"], "--by tenants: must be of tenant"),
        (["usage.jsonl", "--since", "yesterday"], "--since yesterday: must be a day or a time"),
        ([], "name a usage log, or with --config"),
        (["empty.jsonl"], "no file holds a usage record"),
        (["old.jsonl"], "usage record of schema 1"),
        (["broken.gz"], "broken.gz: "),
        (["damaged.gz"], "damaged.gz: "),
        (["damaged.xz"], "damaged.xz: "),
        (["damaged.bz2"], "damaged.bz2: "),
        (["early.jsonl"], "`timestamp` is not a time: 0001-01-01T00:00:00+23:59"),
        (["escape.jsonl"], "record \\x1b[2J: `timestamp` is not a time: \\x1b]0;x"),
    ],
)
def test_a_fault_is_named(
    words: list[str], fault: str, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its file or flag, on standard error alone."""
    monkeypatch.chdir(log.parent)
    monkeypatch.delenv("HEARTH_CONFIG", raising=False)
    Path("empty.jsonl").touch()
    Path("old.jsonl").write_text('{"request_id": "r", "tenant": "legal"}\n')
    Path("broken.gz").write_bytes(gzip.compress(a_record() * 50)[:40])
    for name, packed in {"gz": gzip.compress(a_record() * 50), "xz": lzma.compress(a_record() * 50)}.items():
        Path(f"damaged.{name}").write_bytes(packed[:24] + bytes(each ^ 0xFF for each in packed[24:60]) + packed[60:])
    Path("damaged.bz2").write_bytes(b"no bzip2")
    Path("early.jsonl").write_bytes(a_record(timestamp="0001-01-01T00:00:00+23:59"))
    Path("escape.jsonl").write_bytes(a_record(request_id="\x1b[2J", timestamp="\x1b]0;x"))
    assert main(["spend", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, fault in err) == ("", True), err


def test_the_configuration_names_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the gateway reads it."""
    (log.parent / "hearth.yaml").write_text(f"usage_log: {log}\ndiscovery: {{static: {{pods: ['http://a:1']}}}}\n")
    assert spend(capsys, "--config", log.parent / "hearth.yaml")["total"]["requests"] == 4


def test_a_compressed_line_that_is_too_long_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small file can hold a line that no memory holds."""
    monkeypatch.setattr(usage_log, "MAX_LINE_BYTES", 1000)
    (tmp_path / "usage.jsonl.gz").write_bytes(gzip.compress(a_record() + b" " * 100_000 + a_record()))
    assert main(["spend", str(tmp_path / "usage.jsonl.gz")]) == 1
    assert "a line has more than 1000 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["=HYPERLINK(A1)", "+1", "-1", "@SUM(A1)", "\tx", "'=1"])
def test_a_csv_has_no_formulas(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that a client has chosen is text for a spreadsheet too."""
    (tmp_path / "usage.jsonl").write_bytes(a_record(model=name))
    assert main(["spend", str(tmp_path / "usage.jsonl"), "--format", "csv", "--by", "model"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["model"] for row in rows] == [f"'{name}"]
