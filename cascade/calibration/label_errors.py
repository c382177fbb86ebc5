"""Scores of collected rows, with what their labels may be wrong by folded in: never less loss than the labels carry.

A row with a true label has its scores already. Of other rows each answer's loss against the largest model's is known,
or a judge's verdict stands for it, or it counts as lost. The judge is measured on rows that have both a true label and
a verdict: among the answers that it does not call worse, the highest share of losses that the audit does not rule out
counts as the loss of each. That holds where audited and judged prompts are of one kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan

from cascade.calibration.examples import LabelledExamples, LabelledRow, LabelSummary
from cascade.calibration.labelling import (
    AUDIT_ERROR,
    TRUE_SOURCES,
    JudgeAudit,
    LabelSource,
    audit_bound,
    relative_scores,
)
from cascade.calibration_file import QualityGuarantee
from cascade.loss_bound import min_examples


def with_label_errors(labelled: LabelledExamples) -> LabelledExamples:
    """Return the same file with a score in every row; unchanged where no row was collected."""
    collected = [row for row in labelled.rows if row.label is not None]
    if not collected:
        return labelled
    smaller = len(labelled.models) - 1
    audits = [_audit(collected, index) for index in range(smaller)]
    losses = tuple(audit_bound(each, AUDIT_ERROR / smaller) if each.is_enough else 1.0 for each in audits)
    rows = [row if row.label is None else _scored(row, losses) for row in labelled.rows]
    is_judged = any(row.label is not None and row.label.source == LabelSource.JUDGE for row in collected)
    expected = [row.scores[-1] for row in collected if row.label and row.label.source == LabelSource.EXPECTED]
    summary = LabelSummary(
        sources=Counter(row.label.source for row in collected if row.label is not None),
        error=AUDIT_ERROR if is_judged and min(losses) < 1.0 else 0.0,
        audited=tuple(each.not_worse for each in audits),
        judge_losses=losses,
        expected_share=sum(expected) / len(expected) if expected else nan,
    )
    return replace(labelled, rows=rows, labels=summary)


def with_true_labels(labelled: LabelledExamples) -> LabelledExamples:
    """Return the rows with true labels alone. They stand for all where it is chance which rows have one."""
    rows = [row for row in labelled.rows if row.label is None or row.label.source in TRUE_SOURCES]
    if labelled.labels is None:
        return labelled
    sources = Counter(row.label.source for row in rows if row.label is not None)
    left_out = len(labelled.rows) - len(rows)
    return replace(labelled, rows=rows, labels=replace(labelled.labels, sources=sources, error=0.0, left_out=left_out))


TRUE_LABELS_ALONE = 1.5
"""True labels, as a multiple of the fewest that can carry the guarantee, from which they count without a judge's."""


def without_judged(labelled: LabelledExamples, guarantee: QualityGuarantee) -> LabelledExamples:
    """Return the rows with true labels alone where a judge labels others, and they are enough; else the same file.

    A judge's labels are valid only where audited and judged rows are of one kind, and then so are the true labels
    alone. Which are used depends on their number and on nothing that is tested. What a judge may have missed counts as
    lost, so that some hundred true labels show more than thousands of verdicts beside them.
    """
    labels = labelled.labels
    if labels is None or not labels.error:
        return labelled
    known = sum(count for source, count in labels.sources.items() if source in TRUE_SOURCES)
    fewest = min_examples(guarantee.max_loss, 1.0 - guarantee.confidence)
    return with_true_labels(labelled) if known >= TRUE_LABELS_ALONE * fewest else labelled


def _audit(rows: Sequence[LabelledRow], index: int) -> JudgeAudit:
    """Return the judge's verdicts on this model's answers beside true labels."""
    found = JudgeAudit()
    for row in rows:
        label = row.label
        # Answers that are known to lose nothing are not judged in other rows either.
        if label is None or label.source not in TRUE_SOURCES or not isnan(label.losses[index]):
            continue
        if not isnan(verdict := label.verdicts[index]):
            found = found.with_verdict(int(verdict), row.scores[-1] - row.scores[index])
    return found


def _scored(row: LabelledRow, judge_losses: Sequence[float]) -> LabelledRow:
    label = row.label
    if label is None or label.source in TRUE_SOURCES:
        return row
    losses = []
    for known, verdict, bound in zip(label.losses[:-1], label.verdicts[:-1], judge_losses, strict=True):
        if not isnan(known):
            losses.append(known)
        else:
            losses.append(1.0 if isnan(verdict) or verdict > 0.0 else bound)
    return replace(row, scores=relative_scores(losses))
