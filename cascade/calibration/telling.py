"""Calibration and replay in words, for a person at a terminal."""

from __future__ import annotations

from math import inf

from cascade.calibration.replay import Replay
from cascade.ladder_file import ANY_BUCKET, Cut, LadderFile


def tell_file(file: LadderFile) -> str:
    """What a ladder file says: the promise and its evidence, thresholds, what it costs."""
    evidence = file.evidence
    rows = [
        ("ladder", " -> ".join(file.models)),
        ("signal", f"{file.signal} ({file.stage})"),
        ("examples", f"{evidence.examples:,} ({evidence.fingerprint[:19]}...)"),
        ("promise", tell_promise(file)),
        ("kept", f"{evidence.kept:.1%} of requests do not reach {file.models[-1]}"),
        ("loss seen", f"{evidence.loss * 100:.2f} points"),
        ("quality", _beside(file, evidence.quality, evidence.quality_always_top, evidence.quality_always_first)),
        ("cost", _beside(file, evidence.cost, evidence.cost_always_top, evidence.cost_always_first)),
    ]
    rows += [("keep", _cut(file, cut)) for cut in file.cuts]
    return _table(rows)


def tell_promise(file: LadderFile) -> str:
    """Made, or not and what would help."""
    if file.is_promised:
        return str(file.promise)
    evidence = file.evidence
    words = f"cannot promise this with {evidence.examples:,} examples ({file.promise})"
    if evidence.needs is None:
        return f"{words}; no number of examples like these would do. {file.models[-1]} answers"
    more = max(1, evidence.needs - evidence.examples)
    return f"{words}; about {evidence.needs:,} would do, {more:,} more. Until then {file.models[-1]} answers"


def tell_replay(file: LadderFile, played: Replay) -> str:
    """What the file's verdicts do to other examples."""
    is_kept = played.loss <= file.promise.max_loss
    share = ", ".join(f"{model} {part:.1%}" for model, part in zip(file.models, played.answered, strict=True))
    rows = [
        ("examples", f"{played.examples:,}"),
        ("promise", f"{file.promise}{'' if file.is_promised else ' (not made: the top rung answers)'}"),
        ("loss", f"{played.loss * 100:.2f} points: {'within' if is_kept else 'ABOVE'} the promise, on these examples"),
        ("answered", share),
        ("quality", _beside(file, played.quality, played.quality_always_top, played.quality_always_first)),
        ("cost", _beside(file, played.cost, played.cost_always_top, played.cost_always_first)),
        ("saved", f"{played.saved:.1%} of always {file.models[-1]}"),
    ]
    rows += [("loss by bucket", f"{bucket}: {loss * 100:.2f} points") for bucket, loss in played.losses.items()]
    return _table(rows)


def _cut(file: LadderFile, cut: Cut) -> str:
    where = f"{file.models[cut.rung]}, {'any bucket' if cut.bucket == ANY_BUCKET else cut.bucket}:"
    if cut.threshold == inf and cut.edge is None:
        return f"{where} never"
    words = [] if cut.threshold == inf else [f"from {file.signal} {cut.threshold:.6g} on"]
    if cut.edge is not None:
        words.append(f"{cut.edge_share:.0%} of those at {cut.edge:.6g}")
    return f"{where} {' and '.join(words)}"


def _beside(file: LadderFile, own: float, top: float, first: float) -> str:
    return f"{own:.4g}; always {file.models[-1]} {top:.4g}, always {file.models[0]} {first:.4g}"


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:<{width}}{words}\n" for name, words in rows)
