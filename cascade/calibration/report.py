"""Reports of a calibration and of a replay: text for a terminal, and quality against cost as an SVG image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from cascade.calibration.calibrate import CalibrationResult
from cascade.calibration.examples import AnswerPricing, Example, LabelledExamples, LabelSummary, examples_of
from cascade.calibration.labelling import MIN_AUDIT, LabelSource
from cascade.calibration.replay import ReplayResult, replay
from cascade.calibration.signal_quality import Interval, dependent_examples, share_interval, signal_quality
from cascade.calibration.thresholds import EvaluatedRule
from cascade.calibration_file import ANY_BUCKET, AcceptanceThreshold, CalibrationFile, Comparison
from cascade.drift import DriftController
from cascade.signals.combination import COMBINED, SignalCombination


def describe_calibration(file: CalibrationFile) -> str:
    """Return a calibration file as text: the guarantee and its evidence, thresholds, what it costs."""
    evidence = file.evidence
    rows = [
        ("ladder", " -> ".join(file.models)),
        ("signal", f"{file.signal} ({file.stage})"),
        ("examples", f"{evidence.examples:,} ({evidence.fingerprint[:19]}...)"),
        ("promise", describe_guarantee(file)),
        ("kept", f"{evidence.kept:.1%} of requests do not reach {file.models[-1]}"),
        ("loss seen", f"{evidence.loss * 100:.2f} points"),
        ("quality", _beside(file, evidence.quality, evidence.quality_always_top, evidence.quality_always_first)),
        ("cost", _beside(file, evidence.cost, evidence.cost_always_top, evidence.cost_always_first)),
    ]
    rows += [("keep", _cut(file, cut)) for cut in file.cuts]
    return _table(rows)


def describe_guarantee(file: CalibrationFile) -> str:
    """Made, or not and what would help."""
    if file.is_promised:
        return str(file.promise)
    evidence = file.evidence
    words = f"cannot promise this with {evidence.examples:,} examples ({file.promise})"
    if evidence.needs is None:
        return f"{words}; no number of examples like these would do. {file.models[-1]} answers"
    more = max(1, evidence.needs - evidence.examples)
    return f"{words}; about {evidence.needs:,} would do, {more:,} more. Until then {file.models[-1]} answers"


def describe_replay(file: CalibrationFile, played: ReplayResult) -> str:
    """What the file's verdicts do to other examples."""
    verdict = "within" if played.loss <= file.promise.max_loss else "ABOVE"
    share = ", ".join(f"{model} {part:.1%}" for model, part in zip(file.models, played.answered, strict=True))
    rows = [
        ("examples", f"{played.examples:,}"),
        ("promise", f"{file.promise}{'' if file.is_promised else ' (not made: the top rung answers)'}"),
        ("loss", f"{_points(played.loss_interval)}: {verdict} the promise, on these examples"),
        ("answered", share),
        ("quality", _beside(file, played.quality, played.quality_always_top, played.quality_always_first)),
        ("cost", _beside(file, played.cost, played.cost_always_top, played.cost_always_first)),
        ("saved", f"{_shares(played.saving_interval)} of always {file.models[-1]}"),
    ]
    rows += [("loss by bucket", f"{bucket}: {loss * 100:.2f} points") for bucket, loss in played.losses.items()]
    return _table(rows)


def describe_labels(labels: LabelSummary, models: Sequence[str]) -> str:
    """Return as text which methods labelled the rows, and how far the labels may be wrong."""
    sources = ", ".join(f"{source} {count:,}" for source, count in sorted(labels.sources.items()))
    rows = [("labelled by", sources)]
    if labels.left_out:
        rows.append(
            ("left out", f"{labels.left_out:,} rows without a true label: those with one show more by themselves")
        )
    if labels.unlabelled:
        rows.append(("unlabelled", f"{labels.unlabelled:,} rows: all answers but the largest model's count as lost"))
    if LabelSource.JUDGE in labels.sources:
        for model, audited, loss in zip(models, labels.audited, labels.judge_losses, strict=False):
            if loss < 1.0:
                words = f"{model}: each answer not called worse counts as a loss of {loss:.3f}, by {audited:,} audited"
            else:
                words = (
                    f"{model}: {audited:,} audited answers show no bound of the judge's errors ({MIN_AUDIT} are the "
                    "fewest), so its verdicts count as none. Add requests with `expected`, or a scorer"
                )
            rows.append(("judge", words))
    if labels.expected_share < MIN_EXPECTED_SHARE:
        words = (
            f"the largest model gives the `expected` answer in {labels.expected_share:.0%} of the rows that have one: "
            "is it compared in the right form (--answer-pattern)?"
        )
        rows.append(("warning", words))
    return _table(rows)


MIN_EXPECTED_SHARE = 0.3
"""Share of expected answers below which their form may be the reason."""


def describe_signal(file: CalibrationFile, examples: Sequence[Example]) -> str:
    """Return as text how well the signal tells answers apart, and how sure kept share and saving are."""
    rows = []
    for index, model in enumerate(file.models[:-1]):
        quality = signal_quality(examples, index)
        words = f"{quality.auroc.value:.3f} ({quality.auroc.low:.3f} to {quality.auroc.high:.3f})"
        if quality.is_chance:
            words += "; NO BETTER THAN CHANCE: it does not tell which answers to escalate"
        rows.append((f"AUROC {model}", f"{words}, {quality.gaining:,} of {len(examples):,} gain from the next model"))
    if file.is_promised:
        played = replay(file, examples)
        rows.append(("kept", _shares(share_interval(played.kept, played.examples))))
        rows.append(("saved", f"{_shares(played.saving_interval)} of always {file.models[-1]}"))
        rows += [("drift", words) for words in _drift(file)]
    if (dependent := dependent_examples(examples)).examples:
        warning = (
            f"{dependent.examples:,} examples are in {dependent.groups:,} groups of one prompt (or one `group`), "
            f"up to {dependent.max_group:,} in one. They are split by group, but count as independent draws: the "
            "guarantee is less sure than stated. Label each prompt once"
        )
        rows.append(("warning", warning))
    return _table(rows)


def describe_combinations(
    single: LabelledExamples, combined: LabelledExamples, combinations: Sequence[SignalCombination]
) -> str:
    """Return as text what each combination adds up, and how it does beside the best single signal of the same rows."""
    rows = [("combined", f"fitted on rows of their own; {len(combined.rows):,} others are tested")]
    for index, (model, combination) in enumerate(zip(single.models, combinations, strict=False)):
        weights = zip(combination.inputs, combination.weights, strict=True)
        rows.append((f"of {model}", ", ".join(f"{name} {weight:+.3g}" for name, weight in weights)))
        alone = single.default_signal()
        own, other = (
            signal_quality(examples_of(rows_of, name, AnswerPricing()), index).auroc
            for rows_of, name in ((combined, COMBINED), (single, alone))
        )
        words = f"{_auroc(own)}; `{alone}` alone {_auroc(other)}"
        if own.value - other.value < (other.high - other.low) / 4:
            words += f": IT DOES NOT PAY here; use --signal {alone}, which needs no rows for a fit"
        rows.append((f"AUROC {model}", words))
    return _table(rows)


def _auroc(interval: Interval) -> str:
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _drift(file: CalibrationFile) -> Iterator[str]:
    """Yield by comparison what shadow samples will notice."""
    for comparison in Comparison:
        windows = DriftController(file, comparison=comparison).windows
        if windows:
            limits = max((window.limits for window in windows), key=lambda each: each.noticed)
            yield (
                f"compared by {comparison}: a break to twice the allowed loss is noticed within {limits.shadows:,} "
                f"shadow samples with probability {limits.noticed:.2f}, if the comparison shows four of five losses"
            )


def _points(interval: Interval) -> str:
    return f"{interval.value * 100:.2f} points ({interval.low * 100:.2f} to {interval.high * 100:.2f}, 95 %)"


def _shares(interval: Interval) -> str:
    return f"{interval.value:.1%} ({interval.low:.1%} to {interval.high:.1%}, 95 %)"


def _cut(file: CalibrationFile, cut: AcceptanceThreshold) -> str:
    where = f"{file.models[cut.rung]}, {'any bucket' if cut.bucket == ANY_BUCKET else cut.bucket}:"
    if cut.threshold == inf and cut.edge is None:
        return f"{where} never"
    words = [] if cut.threshold == inf else [f"from {file.signal} {cut.threshold:.6g} on"]
    if cut.edge is not None:
        words.append(f"{cut.edge_share:.0%} of those at {cut.edge:.6g}")
    return f"{where} {' and '.join(words)}"


def _beside(file: CalibrationFile, own: float, top: float, first: float) -> str:
    return f"{own:.4g}; always {file.models[-1]} {top:.4g}, always {file.models[0]} {first:.4g}"


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:<{width}}{words}\n" for name, words in rows)


WIDTH, HEIGHT, MARGIN = 640, 400, 64
MAX_POINTS = 400

FONT = 'font-family="sans-serif" font-size="11"'
INK, PALE, CHOSEN, BROKEN = "#343a40", "#ced4da", "#d9480f", "#adb5bd"


class _Frame:
    """From cost and quality to places in the picture."""

    def __init__(self, costs: Sequence[float], qualities: Sequence[float]) -> None:
        self._left, self._wide = min(costs), (max(costs) - min(costs)) or 1.0
        self._low, self._high = min(qualities), (max(qualities) - min(qualities)) or 1.0

    def at(self, cost: float, quality: float) -> tuple[float, float]:
        across = MARGIN + (cost - self._left) / self._wide * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN - (quality - self._low) / self._high * (HEIGHT - 2 * MARGIN)
        return round(across, 1), round(down, 1)


def draw_svg(found: CalibrationResult) -> str:
    """A whole SVG document, without anything that runs or is fetched."""
    evidence, promise = found.file.evidence, found.file.promise
    kept = _thinned(found)
    curve = [(step.cost, evidence.quality_always_top - step.loss) for step in kept]
    shown = sum(step.has_passed for step in kept)
    ends = [
        (evidence.cost_always_first, evidence.quality_always_first),
        (evidence.cost_always_top, evidence.quality_always_top),
    ]
    lowest = evidence.quality_always_top - promise.max_loss
    points = [*curve, *ends, (evidence.cost, lowest)]
    frame = _Frame([cost for cost, _ in points], [quality for _, quality in points])
    parts = [
        _axes(frame, points),
        _line(
            frame, [(min(cost for cost, _ in points), lowest), (max(cost for cost, _ in points), lowest)], PALE, "6 4"
        ),
        _line(frame, curve, BROKEN),
        _line(frame, curve[:shown], INK),
        _mark(frame, *ends[0], INK, f"always {found.file.models[0]}"),
        _mark(frame, *ends[1], INK, f"always {found.file.models[-1]}"),
        _mark(frame, evidence.cost, evidence.quality, CHOSEN, _word(found)),
    ]
    title = f"{' / '.join(found.file.models)} by {found.file.signal}: {promise}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(MARGIN, 24, title, INK),
            *parts,
            "</svg>\n",
        )
    )


def _word(found: CalibrationResult) -> str:
    return "chosen" if found.file.is_promised else "nothing promised"


def _thinned(found: CalibrationResult) -> list[EvaluatedRule]:
    """The rules, strictest first; of many only some, but always the one that was taken."""
    every = max(1, len(found.rules) // MAX_POINTS)
    return [step for at, step in enumerate(found.rules) if at % every == 0 or step is found.chosen_rule]


def _axes(frame: _Frame, points: Sequence[tuple[float, float]]) -> str:
    costs, qualities = [cost for cost, _ in points], [quality for _, quality in points]
    bottom = HEIGHT - MARGIN
    words = [
        f'<path d="M{MARGIN} {MARGIN}V{bottom}H{WIDTH - MARGIN}" fill="none" stroke="{INK}"/>',
        _text(WIDTH / 2, HEIGHT - 16, "cost of a request", INK),
        _text(8, MARGIN - 16, "quality (mean score)", INK),
    ]
    below = [_text(frame.at(cost, min(qualities))[0] - 10, bottom + 16, f"{cost:.3g}", INK) for cost in _ticks(costs)]
    beside = [_text(16, frame.at(min(costs), one)[1] + 4, f"{one:.3f}", INK) for one in _ticks(qualities)]
    return "\n".join([*words, *below, *beside])


def _ticks(values: Sequence[float]) -> Iterable[float]:
    low, high = min(values), max(values)
    return [low + (high - low) * part / 4 for part in range(5)] if high > low else [low]


def _line(frame: _Frame, points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    if len(points) < 2:
        return ""
    places = " ".join(f"{across},{down}" for across, down in (frame.at(*point) for point in points))
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"{dashed}/>'


def _mark(frame: _Frame, cost: float, quality: float, colour: str, word: str) -> str:
    across, down = frame.at(cost, quality)
    label = _text(min(across + 8, WIDTH - MARGIN - 6 * len(word)), down - 8, word, colour)
    return f'<circle cx="{across}" cy="{down}" r="4" fill="{colour}"/>\n{label}'


def _text(across: float, down: float, words: str, colour: str) -> str:
    safe = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{max(0.0, across):.0f}" y="{down:.0f}" fill="{colour}">{safe}</text>'
