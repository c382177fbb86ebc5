"""`hearth cascade`: labels for answers, labelled answers to a calibration file, what it does, what cascades cost."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cascade.calibration.calibrate import CalibrationResult, CalibrationTarget, calibrate
from cascade.calibration.combine import TooFewRows, fit_combinations, split_for_fit, with_combination
from cascade.calibration.examples import AnswerPricing, Example, LabelledExamples, LabelSummary, examples_of
from cascade.calibration.label_errors import with_true_labels, without_judged
from cascade.calibration.labelled_file import InvalidLabelledFile, read_labelled
from cascade.calibration.live_checks import are_buckets_unproven, bucket_faults, signal_faults, value_faults
from cascade.calibration.replay import replay
from cascade.calibration.report import (
    describe_calibration,
    describe_combinations,
    describe_labels,
    describe_replay,
    describe_signal,
    draw_svg,
)
from cascade.calibration_file import CalibrationFile, QualityGuarantee, SignalStage
from cascade.calibration_json import MIN_SHARE, InvalidCalibrationFile, read_calibration_file, write_calibration_file
from cascade.models import EASE, HoldbackWindow, Price
from cascade.signals.combination import COMBINED, SignalCombination
from gateway.commands import collect
from gateway.commands.spent import format_cascade_costs, read_cascade_costs
from gateway.config.loading import check_file
from gateway.config.models import ModelEntry
from tenancy.document import InvalidDocument, InvalidValue

WITHOUT_GUARANTEE = 3
"""Exit status if a file is valid, but does not support the quality guarantee."""

UNPROVEN = (
    "buckets are those of the file, and it has no prompts to compute them from: they must come from the gateway's own "
    "receipts (`cascade.bucket`), else use --ignore-bucket-column\n"
)


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    labelled = ArgumentParser(add_help=False)
    labelled.add_argument(
        "--data", metavar="FILE", required=True, help="labelled answers (docs/cascade-calibration.md)"
    )
    labelled.add_argument("--price", metavar="MODEL=IN,OUT", action="append", default=[], help="of a token; repeatable")
    labelled.add_argument("--config", metavar="FILE", help="configuration with the prices (default $HEARTH_CONFIG)")
    labelled.add_argument(
        "--window-tokens", metavar="N", type=int, default=HoldbackWindow().tokens, help="held back (default 48)"
    )
    labelled.add_argument(
        "--ignore-bucket-column", action="store_true", help="buckets are computed from the prompts, or there is one"
    )
    labelled.add_argument(
        "--named-bucket",
        metavar="NAME",
        action="append",
        default=[],
        help="a bucket that requests or tenants name (`buckets` of the cascade); repeatable",
    )
    found = actions.add_parser(
        "calibrate", parents=[labelled], help="choose thresholds under a quality guarantee; write a calibration file"
    )
    found.add_argument("--max-loss", metavar="SHARE", type=float, required=True, help="0.01 is one point of quality")
    found.add_argument(
        "--confidence", metavar="SHARE", type=float, default=0.95, help="confidence of the guarantee (default 0.95)"
    )
    found.add_argument(
        "--models",
        metavar="MODEL,...",
        help="models of the cascade, cheapest first (default: in the order of the columns)",
    )
    found.add_argument(
        "--signal",
        metavar="NAME",
        help="signal column (default: margin, else the first); `combined`: fitted from all",
    )
    found.add_argument("--stage", choices=tuple(SignalStage), help="when the signal is known (default: by its column)")
    found.add_argument(
        "--true-labels-only",
        action="store_true",
        help="without rows that agreement, a schema or a judge labels: chance decided which rows have a true label",
    )
    found.add_argument("--out", metavar="FILE", type=Path, help="calibration file to write")
    found.add_argument("--plot", metavar="FILE.svg", type=Path, help="quality against cost")
    collect.add_flags(actions.add_parser("collect", help="label recorded requests; write a file for calibrate"))
    played = actions.add_parser("evaluate", parents=[labelled], help="apply a calibration file to labelled answers")
    played.add_argument("file", metavar="CALIBRATION_FILE", type=Path)
    report_parser = actions.add_parser(
        "report", help="the quality guarantee and its evidence; what cascades have cost and saved"
    )
    report_parser.add_argument("log", metavar="USAGE_LOG", type=Path, nargs="*")
    report_parser.add_argument(
        "--file",
        metavar="CALIBRATION_FILE",
        type=Path,
        action="append",
        default=[],
        help="calibration of a cascade; repeatable",
    )


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the action. Returns 0 on success, 1 if a file is invalid, 3 if the quality guarantee does not hold."""
    try:
        return _run(arguments, variables)
    except InvalidLabelledFile as fault:
        path = arguments.out if arguments.action == "collect" else arguments.data
        return _reject(f"{path}: {words}" for words in fault.faults)
    except InvalidCalibrationFile as fault:
        return _reject(fault.faults)
    except InvalidDocument as invalid:
        return _reject(map(str, invalid.errors))
    except OSError as trouble:
        return _reject([f"{trouble.filename}: {trouble.strerror}" if trouble.filename else str(trouble)])
    except InvalidValue as wrong:
        return _reject([str(wrong)])


def _run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    match arguments.action:
        case "calibrate":
            return _calibrate(arguments, variables)
        case "evaluate":
            return _evaluate(arguments, variables)
        case "collect":
            return collect.run(arguments, _prices(arguments, variables), _models(arguments.models))
        case _:
            return _report(arguments)


def _reject(faults: Iterable[str]) -> int:
    sys.stderr.write("".join(f"hearth: {fault}\n" for fault in faults))
    return 1


def _calibrate(arguments: Namespace, variables: Mapping[str, str]) -> int:
    for flag, part in (("--max-loss", arguments.max_loss), ("--confidence", arguments.confidence)):
        if not 0.0 < part < 1.0:
            raise InvalidValue(f"{flag} must be between 0 and 1, as 0.01 for one point and 0.95 for nineteen in twenty")
        if not MIN_SHARE <= part <= 1.0 - MIN_SHARE:
            raise InvalidValue(
                f"{flag} {part:g} cannot be shown by examples: it must be {MIN_SHARE:g} or more from 0 and 1"
            )
    # The rows are not kept: those of a large file take more memory than all that follows.
    subject, labels, examples, combinations = _labelled_examples(arguments, variables)
    label_error = labels.error if labels else 0.0
    if label_error and arguments.confidence + label_error >= 1.0 - MIN_SHARE:
        raise InvalidValue(
            f"--confidence {arguments.confidence:g} is more than labels of a judge carry: {1.0 - label_error:g}"
        )
    guarantee = QualityGuarantee(arguments.max_loss, arguments.confidence)
    found = calibrate(examples, subject, guarantee, label_error)
    found = replace(found, file=replace(found.file, combinations=combinations))
    if labels:
        sys.stdout.write(describe_labels(labels, subject.models))
    _write(found, examples, arguments)
    return 0 if found.file.is_promised else WITHOUT_GUARANTEE


def _labelled_examples(
    arguments: Namespace, variables: Mapping[str, str]
) -> tuple[CalibrationTarget, LabelSummary | None, list[Example], tuple[SignalCombination, ...]]:
    """Read the labelled file.

    Returns what is calibrated, how it was labelled if it was collected, its examples, and combinations of signals.
    """
    labelled = _labelled(arguments, _models(arguments.models) if arguments.models else ())
    if arguments.true_labels_only:
        labelled = with_true_labels(labelled)
        if not labelled.rows:
            raise InvalidValue(f"{arguments.data} has no row with a true label")
    elif arguments.action == "calibrate":
        labelled = without_judged(labelled, QualityGuarantee(arguments.max_loss, arguments.confidence))
    signal = arguments.signal or labelled.default_signal()
    subject = CalibrationTarget(labelled.models, signal, SignalStage(arguments.stage or labelled.default_stage(signal)))
    if labelled.stage not in (None, subject.stage) and subject.stage is not SignalStage.PROMPT:
        raise InvalidValue(f"--stage {subject.stage} conflicts with {arguments.data}, whose stage is {labelled.stage}")
    combinations: tuple[SignalCombination, ...] = ()
    if signal == COMBINED:
        labelled, combinations = _combined(labelled, arguments)
    return subject, labelled.labels, _examples(arguments, variables, labelled, subject), combinations


def _combined(
    labelled: LabelledExamples, arguments: Namespace
) -> tuple[LabelledExamples, tuple[SignalCombination, ...]]:
    """Return the rows that no combination was fitted on, with their combined signal, and the combinations."""
    if COMBINED in labelled.signals:
        raise InvalidValue(f"{arguments.data} has a column `{COMBINED}`: the gateway computes that from other signals")
    fitted, tested = split_for_fit(labelled)
    try:
        combinations = fit_combinations(fitted)
    except TooFewRows as few:
        raise InvalidValue(f"{arguments.data}: {few}") from None
    found = with_combination(tested, combinations)
    sys.stdout.write(describe_combinations(tested, found, combinations))
    return found, combinations


def _write(found: CalibrationResult, examples: Sequence[Example], arguments: Namespace) -> None:
    sys.stdout.write(describe_calibration(found.file))
    sys.stdout.write(describe_signal(found.file, examples))
    if arguments.out:
        arguments.out.write_bytes(write_calibration_file(found.file))
        sys.stdout.write(f"written to {arguments.out}\n")
    if arguments.plot:
        arguments.plot.write_text(draw_svg(found), encoding="utf-8")
        sys.stdout.write(f"drawn in {arguments.plot}\n")


def _evaluate(arguments: Namespace, variables: Mapping[str, str]) -> int:
    file = _calibration_file(arguments.file)
    labelled = _labelled(arguments, file.models)
    if file.combinations:
        labelled = with_combination(labelled, file.combinations)
    examples = _examples(arguments, variables, labelled, CalibrationTarget(file.models, file.signal, file.stage))
    played = replay(file, examples)
    sys.stdout.write(describe_replay(file, played))
    return 0 if played.loss <= file.promise.max_loss else WITHOUT_GUARANTEE


def _report(arguments: Namespace) -> int:
    if not arguments.log and not arguments.file:
        raise InvalidValue("name usage logs, or calibration files with --file")
    parts = [f"{path}\n{describe_calibration(_calibration_file(path))}" for path in arguments.file]
    if arguments.log:
        parts.append(format_cascade_costs(read_cascade_costs(arguments.log)))
    sys.stdout.write("\n".join(parts))
    return 0


def _calibration_file(path: Path) -> CalibrationFile:
    try:
        return read_calibration_file(path.read_bytes())
    except InvalidCalibrationFile as fault:
        raise InvalidCalibrationFile(tuple(f"{path}: {words}" for words in fault.faults)) from None


def _models(words: str) -> tuple[str, ...]:
    models = tuple(model.strip() for model in words.split(","))
    if len(models) < 2 or len(set(models)) < len(models) or "" in models:
        raise InvalidValue(f"--models {words}: must name two models or more, each once, the cheapest first")
    return models


def _labelled(arguments: Namespace, models: Sequence[str]) -> LabelledExamples:
    labelled = read_labelled(Path(arguments.data).read_bytes(), models)
    if arguments.ignore_bucket_column:
        return replace(labelled, rows=[replace(row, bucket=None) for row in labelled.rows])
    if faults := tuple(bucket_faults(labelled, arguments.named_bucket)):
        raise InvalidLabelledFile(faults)
    if are_buckets_unproven(labelled):
        sys.stdout.write(UNPROVEN)
    return labelled


def _examples(
    arguments: Namespace, variables: Mapping[str, str], labelled: LabelledExamples, subject: CalibrationTarget
) -> list[Example]:
    if subject.signal not in (*labelled.signals, EASE):
        there = ", ".join(labelled.signals) or "none"
        raise InvalidValue(f"{arguments.data} has no signal `{subject.signal}`; there are {there}")
    if faults := tuple(signal_faults(labelled, subject.signal, subject.stage)):
        raise InvalidLabelledFile(faults)
    tariff = AnswerPricing(_prices(arguments, variables), subject.stage, arguments.window_tokens)
    examples = examples_of(labelled, subject.signal, tariff)
    if faults := tuple(value_faults(examples, labelled, subject.signal)):
        raise InvalidLabelledFile(faults)
    return examples


def _prices(arguments: Namespace, variables: Mapping[str, str]) -> dict[str, Price]:
    """Return the prices of the configuration, overridden by flags."""
    named = arguments.config or variables.get("HEARTH_CONFIG")
    models = check_file(Path(named), variables).models if named else ()
    report_parser = {entry.name: _price(entry) for entry in models if entry.input_cost_per_token is not None}
    return report_parser | dict(map(_flag_price, arguments.price))


def _price(entry: ModelEntry) -> Price:
    return Price(
        entry.input_cost_per_token or 0.0, entry.cache_read_input_token_cost, entry.output_cost_per_token or 0.0
    )


def _flag_price(words: str) -> tuple[str, Price]:
    model, _, numbers = words.rpartition("=")
    try:
        given, answered = map(float, numbers.split(","))
    except ValueError:
        raise InvalidValue(f"--price {words}: say MODEL=IN,OUT, the price of a token of prompt and of answer") from None
    return model, Price(given, None, answered)
