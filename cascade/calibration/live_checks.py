"""Whether the gateway computes from live traffic what a labelled file says: its signal, values and buckets.

A guarantee is calibrated on the file and applied to live traffic. Where the two differ the guarantee breaks without
a sign, so everything here is a fault, each with its fix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf, isfinite

from cascade.calibration.examples import Example, LabelledExamples, LabelledRow
from cascade.calibration_file import SignalStage
from cascade.computable import COMPUTED_BUCKETS, bucket_fault, signal_fault, signal_range
from cascade.models import EASE
from cascade.signals.tokens import SIGNALS
from cascade.tasks import TaskBucket, bucket_of, prompt_features

UNPROVABLE_BUCKETS = frozenset({TaskBucket.VISION.value, TaskBucket.TOOLS.value, TaskBucket.EXTRACTION.value})
"""Buckets that follow from more than the words of a prompt: its pictures, its tools, the requested format."""

ROUNDING = 1e-3
"""How far beyond its range a signal may lie."""

IGNORE_BUCKETS_HINT = "`--ignore-bucket-column` calibrates without the column"


def signal_faults(labelled: LabelledExamples, signal: str, stage: SignalStage) -> Iterator[str]:
    """Yield why the gateway cannot compute this signal of this file."""
    if words := signal_fault(signal, stage):
        yield words
    elif signal == EASE and EASE in labelled.signals:
        yield f"the gateway computes `{EASE}` from the words of a prompt: replace the column `{EASE}` by `prompt`"
    elif signal == EASE and all(row.prompt is None for row in labelled.rows):
        there = ", ".join(labelled.signals) or "none"
        yield (
            f"there is no signal that the gateway can compute; the file has {there}. It computes "
            f"{', '.join(SIGNALS)} from an answer (columns SIGNAL@MODEL), and {EASE} from the column `prompt`"
        )


def value_faults(examples: Sequence[Example], labelled: LabelledExamples, signal: str) -> Iterator[str]:
    """Yield that a column has values which the signal of its name cannot have: it is another measure."""
    lowest, highest = signal_range(signal)
    for index, model in enumerate(labelled.models[:-1]):
        values = [example.signals[index] for example in examples if isfinite(example.signals[index])]
        beyond = [value for value in values if not lowest - ROUNDING <= value <= highest + ROUNDING]
        if beyond:
            bounds = f"is at most {highest:g}" if lowest == -inf else f"is from {lowest:g} to {highest:g}"
            yield (
                f"`{signal}` of {model} {bounds} as the gateway computes it; "
                f"{len(beyond):,} of {len(values):,} values are not, the first is {beyond[0]:g}"
            )


def bucket_faults(labelled: LabelledExamples, named: Collection[str] = ()) -> Iterator[str]:
    """Yield which buckets of the file the gateway would not compute for the same requests.

    `named` are buckets that requests or tenants will name, so that nothing computes them.
    """
    stated = [row for row in labelled.rows if row.bucket is not None and row.bucket not in named]
    if not stated:
        return
    unknown = dict.fromkeys(row.bucket for row in stated if row.bucket not in COMPUTED_BUCKETS)
    if unknown:
        first, *others = map(str, unknown)
        more = f" (and of {len(others)} more: {', '.join(others[:5])})" if others else ""
        hint = f"`--named-bucket {first}` if requests or tenants name it; {IGNORE_BUCKETS_HINT}"
        yield f"{bucket_fault(first)}{more}. {hint}"
        return
    differing = [row for row in stated if (found := computed_bucket(row)) is not None and found != row.bucket]
    if differing:
        first_row = differing[0]
        yield (
            f"the gateway would compute another bucket for {len(differing):,} of {len(stated):,} prompts: "
            f"`{computed_bucket(first_row)}` for the first, which the file calls `{first_row.bucket}`. "
            f"{IGNORE_BUCKETS_HINT}"
        )
    if silent := sum(row.bucket is None and row.prompt is None for row in labelled.rows):
        yield (
            f"{silent:,} of {len(labelled.rows):,} lines have neither a bucket nor a prompt, others have. "
            f"{IGNORE_BUCKETS_HINT}"
        )


def are_buckets_unproven(labelled: LabelledExamples) -> bool:
    """Return whether the file has buckets without the prompts that would show how they were computed."""
    return any(row.bucket is not None and row.prompt is None for row in labelled.rows)


def computed_bucket(row: LabelledRow) -> str | None:
    """Return the bucket that the gateway computes for a prompt; None where that cannot be known from the file."""
    if row.prompt is None or row.bucket in UNPROVABLE_BUCKETS:
        return None
    return bucket_of(prompt_features([row.prompt])).value
