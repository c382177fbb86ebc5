"""`hearth cascade calibrate|evaluate|report`: labelled answers to a ladder file, what it does, what ladders cost."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cascade.calibration.calibrate import Calibration, Subject, calibrate
from cascade.calibration.examples import Example, Labelled, Tariff, examples_of
from cascade.calibration.labelled_file import BadLabels, read_labelled
from cascade.calibration.live_checks import are_buckets_unproven, bucket_faults, signal_faults, value_faults
from cascade.calibration.replay import replay
from cascade.calibration.report import draw, tell_file, tell_replay
from cascade.calibration_file import LadderFile, Promise, Stage
from cascade.calibration_json import SMALLEST_SHARE, BadLadderFile, read_ladder_file, write_ladder_file
from cascade.models import EASE, Price, Window
from gateway.commands.spent import read_spent, tell_spent
from gateway.config.loading import check_file
from gateway.config.models import ModelEntry
from tenancy.document import Invalid, Wrong

UNPROMISED = 3
"""Exit status if a file is valid, but does not support the quality guarantee."""

UNPROVEN = (
    "buckets are those of the file, and it has no prompts to compute them from: they must come from the gateway's own "
    "receipts (`climbed.bucket`), else use --ignore-bucket-column\n"
)


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    labelled = ArgumentParser(add_help=False)
    labelled.add_argument(
        "--data", metavar="FILE", required=True, help="labelled answers (docs/cascade-calibration.md)"
    )
    labelled.add_argument("--price", metavar="MODEL=IN,OUT", action="append", default=[], help="of a token; repeatable")
    labelled.add_argument("--config", metavar="FILE", help="where the prices are (default $HEARTH_CONFIG)")
    labelled.add_argument(
        "--window-tokens", metavar="N", type=int, default=Window().tokens, help="held back (default 48)"
    )
    labelled.add_argument(
        "--ignore-bucket-column", action="store_true", help="buckets are computed from the prompts, or there is one"
    )
    found = actions.add_parser("calibrate", parents=[labelled], help="thresholds under a promise, as a ladder file")
    found.add_argument("--max-loss", metavar="SHARE", type=float, required=True, help="0.01 is one point of quality")
    found.add_argument("--confidence", metavar="SHARE", type=float, default=0.95, help="how sure (default 0.95)")
    found.add_argument(
        "--ladder", metavar="MODEL,...", help="the rungs, cheapest first (default: as the columns stand)"
    )
    found.add_argument("--signal", metavar="NAME", help="which column (default: the margin, else the first)")
    found.add_argument("--stage", choices=tuple(Stage), help="when the signal is known (default: by its column)")
    found.add_argument("--out", metavar="FILE", type=Path, help="where the ladder file goes")
    found.add_argument("--plot", metavar="FILE.svg", type=Path, help="quality against cost")
    played = actions.add_parser("evaluate", parents=[labelled], help="what a ladder file does to labelled answers")
    played.add_argument("file", metavar="LADDER_FILE", type=Path)
    told = actions.add_parser("report", help="the promise and its evidence; what ladders have cost and saved")
    told.add_argument("log", metavar="USAGE_LOG", type=Path, nargs="*")
    told.add_argument("--file", metavar="LADDER_FILE", type=Path, action="append", default=[])


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the action. Returns 0 on success, 1 if a file is invalid, 3 if the quality guarantee does not hold."""
    try:
        match arguments.action:
            case "calibrate":
                return _calibrate(arguments, variables)
            case "evaluate":
                return _evaluate(arguments, variables)
            case _:
                return _report(arguments)
    except BadLabels as fault:
        return _refuse(f"{arguments.data}: {words}" for words in fault.faults)
    except BadLadderFile as fault:
        return _refuse(fault.faults)
    except Invalid as invalid:
        return _refuse(map(str, invalid.faults))
    except OSError as trouble:
        return _refuse([f"{trouble.filename}: {trouble.strerror}" if trouble.filename else str(trouble)])
    except Wrong as wrong:
        return _refuse([str(wrong)])


def _refuse(faults: Iterable[str]) -> int:
    sys.stderr.write("".join(f"hearth: {fault}\n" for fault in faults))
    return 1


def _calibrate(arguments: Namespace, variables: Mapping[str, str]) -> int:
    for flag, part in (("--max-loss", arguments.max_loss), ("--confidence", arguments.confidence)):
        if not 0.0 < part < 1.0:
            raise Wrong(f"{flag} must be between 0 and 1, as 0.01 for one point and 0.95 for nineteen in twenty")
        if not SMALLEST_SHARE <= part <= 1.0 - SMALLEST_SHARE:
            raise Wrong(
                f"{flag} {part:g} cannot be shown by examples: it must be {SMALLEST_SHARE:g} or more from 0 and 1"
            )
    labelled = _labelled(arguments, _rungs(arguments.ladder) if arguments.ladder else ())
    signal = arguments.signal or labelled.usual_signal()
    subject = Subject(labelled.models, signal, Stage(arguments.stage or labelled.usual_stage(signal)))
    examples = _examples(arguments, variables, labelled, subject)
    found = calibrate(examples, subject, Promise(arguments.max_loss, arguments.confidence))
    _write(found, arguments)
    return 0 if found.file.is_promised else UNPROMISED


def _write(found: Calibration, arguments: Namespace) -> None:
    sys.stdout.write(tell_file(found.file))
    if arguments.out:
        arguments.out.write_bytes(write_ladder_file(found.file))
        sys.stdout.write(f"written to {arguments.out}\n")
    if arguments.plot:
        arguments.plot.write_text(draw(found), encoding="utf-8")
        sys.stdout.write(f"drawn in {arguments.plot}\n")


def _evaluate(arguments: Namespace, variables: Mapping[str, str]) -> int:
    file = _ladder_file(arguments.file)
    labelled = _labelled(arguments, file.models)
    examples = _examples(arguments, variables, labelled, Subject(file.models, file.signal, file.stage))
    played = replay(file, examples)
    sys.stdout.write(tell_replay(file, played))
    return 0 if played.loss <= file.promise.max_loss else UNPROMISED


def _report(arguments: Namespace) -> int:
    if not arguments.log and not arguments.file:
        raise Wrong("report what? Name usage logs, or ladder files with --file")
    parts = [f"{path}\n{tell_file(_ladder_file(path))}" for path in arguments.file]
    if arguments.log:
        parts.append(tell_spent(read_spent(arguments.log)))
    sys.stdout.write("\n".join(parts))
    return 0


def _ladder_file(path: Path) -> LadderFile:
    try:
        return read_ladder_file(path.read_bytes())
    except BadLadderFile as fault:
        raise BadLadderFile(tuple(f"{path}: {words}" for words in fault.faults)) from None


def _rungs(words: str) -> tuple[str, ...]:
    models = tuple(model.strip() for model in words.split(","))
    if len(models) < 2 or len(set(models)) < len(models) or "" in models:
        raise Wrong(f"--ladder {words}: must name two models or more, each once, the cheapest first")
    return models


def _labelled(arguments: Namespace, models: Sequence[str]) -> Labelled:
    labelled = read_labelled(Path(arguments.data).read_bytes(), models)
    if arguments.ignore_bucket_column:
        return replace(labelled, rows=[replace(row, bucket=None) for row in labelled.rows])
    if faults := tuple(bucket_faults(labelled)):
        raise BadLabels(faults)
    if are_buckets_unproven(labelled):
        sys.stdout.write(UNPROVEN)
    return labelled


def _examples(
    arguments: Namespace, variables: Mapping[str, str], labelled: Labelled, subject: Subject
) -> list[Example]:
    if subject.signal not in (*labelled.signals, EASE):
        there = ", ".join(labelled.signals) or "none"
        raise Wrong(f"{arguments.data} has no signal `{subject.signal}`; there are {there}")
    if faults := tuple(signal_faults(labelled, subject.signal, subject.stage)):
        raise BadLabels(faults)
    tariff = Tariff(_prices(arguments, variables), subject.stage, arguments.window_tokens)
    examples = examples_of(labelled, subject.signal, tariff)
    if faults := tuple(value_faults(examples, labelled, subject.signal)):
        raise BadLabels(faults)
    return examples


def _prices(arguments: Namespace, variables: Mapping[str, str]) -> dict[str, Price]:
    """Return the prices of the configuration, overridden by flags."""
    named = arguments.config or variables.get("HEARTH_CONFIG")
    models = check_file(Path(named), variables).models if named else ()
    told = {entry.name: _price(entry) for entry in models if entry.input_cost_per_token is not None}
    return told | dict(map(_flag_price, arguments.price))


def _price(entry: ModelEntry) -> Price:
    return Price(
        entry.input_cost_per_token or 0.0, entry.cache_read_input_token_cost, entry.output_cost_per_token or 0.0
    )


def _flag_price(words: str) -> tuple[str, Price]:
    model, _, numbers = words.rpartition("=")
    try:
        given, answered = map(float, numbers.split(","))
    except ValueError:
        raise Wrong(f"--price {words}: say MODEL=IN,OUT, the price of a token of prompt and of answer") from None
    return model, Price(given, None, answered)
