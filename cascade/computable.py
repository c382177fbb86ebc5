"""What the gateway can compute in production: which signals at which stage, and which buckets of tasks.

A calibration holds only for what is computed from live traffic in the same way. Everything else would never be found
there: an unknown signal keeps no answer, an unknown bucket gets the threshold of other tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from cascade.calibration_file import ANY_BUCKET, AcceptanceThreshold, CalibrationFile, SignalStage
from cascade.models import EASE
from cascade.signals.combination import COMBINED
from cascade.signals.tokens import SIGNAL_RANGES, SIGNALS
from cascade.tasks import TaskBucket

COMPUTED_BUCKETS = frozenset(bucket.value for bucket in TaskBucket)


def signals_at(stage: SignalStage) -> tuple[str, ...]:
    """Return the signals that the gateway computes at this stage, by name."""
    return (EASE,) if stage is SignalStage.PROMPT else (*SIGNALS, COMBINED)


def signal_range(signal: str) -> tuple[float, float]:
    """Return the least and the greatest value that a signal can have; -inf and inf where it is unknown."""
    if signal == COMBINED:
        return (0.0, 1.0)
    return (-inf, 0.0) if signal == EASE else SIGNAL_RANGES.get(signal, (-inf, inf))


def signal_fault(signal: str, stage: SignalStage) -> str | None:
    """Return why this signal cannot be computed at this stage; None where it can."""
    if signal in signals_at(stage):
        return None
    answers = "from the prompt" if stage is SignalStage.PROMPT else f"at the stage `{stage}`"
    return (
        f"the gateway cannot compute the signal `{signal}` {answers}; "
        f"it computes {', '.join(SIGNALS)} from an answer, and {EASE} from a prompt"
    )


def bucket_fault(bucket: str) -> str:
    """Return the words for a bucket that the gateway does not compute and no request can name."""
    return f"the gateway never computes the bucket `{bucket}`; it computes {', '.join(sorted(COMPUTED_BUCKETS))}"


def calibration_faults(file: CalibrationFile, named: Collection[str] = ()) -> Iterator[str]:
    """Yield what a calibration file relies on and the gateway cannot compute, as `PATH: words`.

    `named` are the buckets that requests and tenants may name.
    """
    if words := signal_fault(file.signal, file.stage):
        yield f"signal: {words}. Calibrate again with one of these"
    for at, cut in enumerate(file.cuts):
        is_known = cut.bucket in COMPUTED_BUCKETS or cut.bucket == ANY_BUCKET or cut.bucket in named
        if not is_known and not _is_shared(file, cut):
            yield (
                f"cuts[{at}].bucket: {bucket_fault(cut.bucket)}. Name it in the cascade's `buckets`, or calibrate "
                "again without it"
            )


def _is_shared(file: CalibrationFile, cut: AcceptanceThreshold) -> bool:
    """Whether a bucket has the threshold of all the others: then it does not matter that it is never found."""
    general = file.threshold_for(cut.rung, ANY_BUCKET)
    return general is not None and (general.threshold, general.edge, general.edge_share) == (
        cut.threshold,
        cut.edge,
        cut.edge_share,
    )
