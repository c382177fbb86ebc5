"""`hearth cascade`: labelled answers in, a calibration file out; what it does; what cascades have cost."""

import json
from math import exp
from pathlib import Path
from random import Random

import pytest

from cascade.calibration_json import read_calibration_file
from gateway.cli import main
from gateway.commands.cascade import WITHOUT_GUARANTEE
from tests.cascade.calibration.labels import informative_examples

CONFIG = """
model_list:
  - {model_name: small, input_cost_per_token: 1.0e-6, output_cost_per_token: 2.0e-6}
  - {model_name: large, input_cost_per_token: 1.0e-5, output_cost_per_token: 2.0e-5}
"""


def margin(sureness: float) -> float:
    """A margin lies between 0 and 1."""
    return 1 / (1 + exp(-sureness))


@pytest.fixture
def labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HEARTH_CONFIG", raising=False)
    lines = ["score@small,score@large,margin@small,mean@small"]
    lines += [f"{one.scores[0]},{one.scores[1]},{margin(one.signals[0])},0" for one in informative_examples(1_000)]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(lines))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["cascade", *map(str, words)])
    reported = capsys.readouterr()
    return status, reported.out, reported.err


def test_from_labels_to_a_calibration_file(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibrated, drawn, evaluated and reported."""
    ladder, plot = labels.parent / "ladder.json", labels.parent / "plot.svg"
    status, out, _ = run(capsys, "calibrate", "--data", labels, "--max-loss", 0.03, "--out", ladder, "--plot", plot)
    assert status == 0
    assert "lose at most 3 points, 95 % sure" in out
    assert read_calibration_file(ladder.read_bytes()).signal == "margin"
    assert plot.read_text().startswith("<svg")
    status, out, _ = run(capsys, "evaluate", ladder, "--data", labels)
    assert status == 0
    assert "within the promise" in out
    assert "small -> large" in run(capsys, "report", "--file", ladder)[1]


def test_prices_come_from_flags_or_configuration(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And change what is worth keeping."""
    config = labels.parent / "hearth.yaml"
    config.write_text(CONFIG)
    by_config = run(capsys, "calibrate", "--data", labels, "--max-loss", 0.03, "--config", config)[1]
    prices = ("--price", "small=1e-6,2e-6", "--price", "large=1e-5,2e-5")
    by_flags = run(capsys, "calibrate", "--data", labels, "--max-loss", 0.03, *prices)[1]
    assert by_config == by_flags
    assert "always large 0.01012" in by_flags


def test_too_few_labels_guarantee_nothing(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3, how many would do, and a file under which the large model answers."""
    labels.write_text("\n".join(labels.read_text().splitlines()[:101]))
    ladder = labels.parent / "ladder.json"
    status, out, _ = run(capsys, "calibrate", "--data", labels, "--max-loss", 0.01, "--out", ladder)
    assert status == WITHOUT_GUARANTEE
    assert "cannot promise this with 100 examples" in out
    assert "would do" in out
    assert not read_calibration_file(ladder.read_bytes()).is_promised


def test_a_guarantee_that_other_labels_break_is_reported(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3 again: a deployment may stop here."""
    ladder, worse = labels.parent / "ladder.json", labels.parent / "worse.csv"
    run(capsys, "calibrate", "--data", labels, "--max-loss", 0.01, "--out", ladder)
    worse.write_text("score@small,score@large,margin@small\n" + "0,1,1\n1,1,1\n" * 50)
    status, out, _ = run(capsys, "evaluate", ladder, "--data", worse)
    assert status == WITHOUT_GUARANTEE
    assert "ABOVE the promise" in out


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--max-loss", "1"), "--max-loss must be between 0 and 1"),
        (("--max-loss", "0.01", "--confidence", "95"), "--confidence must be between 0 and 1"),
        (("--max-loss", "0.01", "--signal", "colour"), "has no signal `colour`; there are margin, mean"),
        (("--max-loss", "0.01", "--models", "small,huge"), "model `huge`: has no scores"),
        (("--max-loss", "0.01", "--models", "small,small"), "--models small,small: must name two models or more, each"),
        (("--max-loss", "0.01", "--models", "small"), "--models small: must name two models or more, each once"),
        (("--max-loss", "0.01", "--models", "small,,large"), "--models small,,large: must name"),
        (("--max-loss", "1e-9"), "--max-loss 1e-09 cannot be shown by examples: it must be 1e-06 or more"),
        (("--max-loss", "0.01", "--confidence", "0.99999999"), "--confidence 1 cannot be shown by examples"),
        (("--max-loss", "0.01", "--stage", "prompt"), "the gateway cannot compute the signal `margin` from the prompt"),
        (("--max-loss", "0.01", "--price", "small=cheap"), "say MODEL=IN,OUT"),
        (("--max-loss", "0.01", "--config", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_named(
    labels: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reported: str
) -> None:
    """With status 1, on standard error."""
    status, _, err = run(capsys, "calibrate", "--data", labels, *words)
    assert status == 1
    assert reported in err


@pytest.mark.parametrize(
    ("columns", "row", "words", "reported"),
    [
        ("confidence@small,id", "0.7,12", (), "no signal that the gateway can compute; the file has confidence, id."),
        ("confidence@small", "0.7", ("--signal", "confidence"), "the gateway cannot compute the signal `confidence`"),
        ("id", "12", ("--signal", "id"), "the gateway cannot compute the signal `id` from the prompt"),
        ("margin", "0.7", ("--signal", "margin"), "the gateway cannot compute the signal `margin` from the prompt"),
        ("ease@small,prompt", "0.7,Hi", (), "replace the column `ease` by `prompt`"),
        ("margin@small", "3.5", (), "`margin` of small is from 0 to 1 as the gateway computes it; 1,000 of 1,000"),
        ("mean@small", "0.93", (), "`mean` of small is at most 0 as the gateway computes it"),
    ],
)
def test_signals_that_the_gateway_cannot_compute_are_rejected(
    labels: Path, capsys: pytest.CaptureFixture[str], columns: str, row: str, words: tuple[str, ...], reported: str
) -> None:
    """By name, by stage and by their values: a guarantee on them would hold on the file alone."""
    labels.write_text(f"score@small,score@large,{columns}\n" + f"1,1,{row}\n" * 1_000)
    status, _, err = run(capsys, "calibrate", "--data", labels, "--max-loss", "0.03", *words)
    assert status == 1
    assert reported in err


EASY, HARD = "easy", "hard"


def in_buckets(names: dict[str, str], prompts: dict[str, str] | None = None, *, count: int = 6_000) -> str:
    """Two kinds of tasks; one signal means another thing in each of them."""
    random, lines = Random(3), ["bucket,score@small,score@large,margin@small" + (",prompt" if prompts else "")]
    for number in range(count):
        kind = HARD if number % 2 else EASY
        signal = random.random()
        worse = random.random() < (0.3 * (1 - signal) if kind == HARD else 0.01)
        more = f',"{prompts[kind]}"' if prompts else ""
        lines.append(f"{names[kind]},{int(not worse)},1,{signal}{more}")
    return "\n".join(lines)


PROMPTS = {EASY: "Translate this: good morning", HARD: "What is 12 * 12 + 7 * 3?"}


@pytest.mark.parametrize(
    ("names", "prompts", "reported"),
    [
        ({EASY: "news", HARD: "law"}, None, "the gateway never computes the bucket `news`"),
        ({EASY: "code", HARD: "maths"}, PROMPTS, "another bucket for 3,000 of 6,000 prompts: `changing` for the first"),
        ({EASY: "", HARD: "maths"}, None, "3,000 of 6,000 lines have neither a bucket nor a prompt"),
    ],
)
def test_buckets_that_the_gateway_cannot_compute_are_rejected(
    labels: Path,
    capsys: pytest.CaptureFixture[str],
    names: dict[str, str],
    prompts: dict[str, str] | None,
    reported: str,
) -> None:
    """Their thresholds would go to other requests: a guarantee of 3 points can lose 6. Without it it is made."""
    labels.write_text(in_buckets(names, prompts))
    status, _, err = run(capsys, "calibrate", "--data", labels, "--max-loss", "0.03")
    assert (status, reported in err) == (1, True)
    assert run(capsys, "calibrate", "--data", labels, "--max-loss", "0.03", "--ignore-bucket-column")[0] == 0


def test_buckets_as_the_gateway_computes_them_are_taken(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the prompts that show it; without them the command says what the guarantee then rests on."""
    labels.write_text(in_buckets({EASY: "changing", HARD: "maths"}, PROMPTS))
    status, out, _ = run(capsys, "calibrate", "--data", labels, "--max-loss", "0.03")
    assert status == 0
    assert "receipts" not in out
    labels.write_text(in_buckets({EASY: "changing", HARD: "maths"}))
    status, out, _ = run(capsys, "calibrate", "--data", labels, "--max-loss", "0.03")
    assert status == 0
    assert "they must come from the gateway's own receipts" in out


def test_files_that_are_none_are_named(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever it is."""
    config = labels.parent / "hearth.yaml"
    config.write_text(CONFIG)
    assert "two models or more" in run(capsys, "calibrate", "--data", config, "--max-loss", "0.1")[2]
    assert "no JSON" in run(capsys, "evaluate", labels, "--data", labels)[2]
    assert "nowhere" in run(capsys, "calibrate", "--data", "nowhere", "--max-loss", "0.1")[2]
    assert "name usage logs, or calibration files" in run(capsys, "report")[2]
    assert "no line tells of a ladder" in run(capsys, "report", labels)[2]


def line(tenant: str | None, *rungs: tuple[str, str], cost: float) -> str:
    reported = {
        "cascade": "auto",
        "steps": [{"model": model, "result": ended, "signal": None} for model, ended in rungs],
        "cost": cost,
        "wasted_cost": 0.0,
        "cost_always_largest": 10.0,
        "cost_always_first": 1.0,
    }
    return json.dumps({"schema": 2, "tenant": tenant, "cascade": reported, "model": "auto"})


def test_a_report_adds_up_usage_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By tenant and answering model; other lines and broken ones are passed over."""
    lines = [
        line("legal", ("small", "kept"), cost=1.0),
        line("legal", ("small", "escalated"), ("large", "unjudged"), cost=11.0),
        line(None, ("small", "kept"), cost=1.0),
        '{"tenant": "search", "model": "large"}',
        "nonsense",
    ]
    log = tmp_path / "usage.jsonl"
    log.write_text("\n".join(lines))
    status, out, _ = run(capsys, "report", log)
    rows = [row.split() for row in out.splitlines()]
    assert status == 0
    assert ["legal", "auto", "small", "1", "0.0%", "1", "0", "0", "10", "1", "90.0%"] in rows
    assert ["legal", "auto", "large", "1", "100.0%", "11", "0", "0", "10", "1", "-10.0%"] in rows
    assert ["all", "of", "auto", "3", "33.3%", "13", "0", "0", "30", "3", "56.7%"] in rows


def test_a_report_rejects_records_of_another_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Version 1 named the fields otherwise; it is not read as a log without cascades."""
    log = tmp_path / "usage.jsonl"
    log.write_text('{"request_id": "r", "tenant": "legal", "cascade": {"ladder": "auto", "rungs": []}}')
    status, _, err = run(capsys, "report", log)
    assert (status, "usage.jsonl:1: usage record of schema 1" in err) == (1, True)


def test_a_combined_signal_is_fitted_written_and_evaluated(
    labels: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On two thirds of the rows; AUROCs stand beside each other, and one that adds nothing is said not to pay."""
    out = tmp_path / "auto.json"
    status, printed, _ = run(
        capsys, "calibrate", "--data", labels, "--max-loss", "0.05", "--signal", "combined", "--out", out
    )
    assert status == 0
    assert "of small     margin +" in printed
    assert "`margin` alone" in printed
    assert "IT DOES NOT PAY here" in printed
    file = read_calibration_file(out.read_bytes())
    assert (file.signal, file.combinations[0].inputs, file.evidence.examples) == ("combined", ("margin", "mean"), 666)
    assert run(capsys, "evaluate", out, "--data", labels)[0] == 0
    (tmp_path / "few.csv").write_text("\n".join(labels.read_text().splitlines()[:50]))
    status, _, reported = run(
        capsys, "calibrate", "--data", tmp_path / "few.csv", "--max-loss", "0.05", "--signal", "combined"
    )
    assert status == 1
    assert "a combination takes 60 rows" in reported
