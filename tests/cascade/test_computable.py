"""What a calibration file relies on must be something that the gateway computes."""

from dataclasses import replace
from math import inf

import pytest

from cascade.calibration_file import (
    ANY_BUCKET,
    AcceptanceThreshold,
    CalibrationEvidence,
    CalibrationFile,
    QualityGuarantee,
    SignalStage,
)
from cascade.computable import calibration_faults, signal_fault, signal_range
from cascade.signals.tokens import SIGNAL_RANGES, SIGNALS, read_signals

FILE = CalibrationFile(
    *(
        ("small", "large"),
        "margin",
        SignalStage.WINDOW,
        QualityGuarantee(0.01, 0.95),
        CalibrationEvidence(1_000, "sha256:00"),
    ),
    cuts=(AcceptanceThreshold(0, ANY_BUCKET, 0.5), AcceptanceThreshold(0, "code", inf)),
    is_promised=True,
)


def test_a_file_of_known_signals_and_buckets_has_no_fault() -> None:
    """At each stage by its own signals."""
    assert list(calibration_faults(FILE)) == []
    assert list(calibration_faults(replace(FILE, signal="ease", stage=SignalStage.PROMPT))) == []
    assert all(
        signal_fault(name, stage) is None for name in SIGNALS for stage in (SignalStage.WINDOW, SignalStage.WHOLE)
    )


@pytest.mark.parametrize(
    ("signal", "stage"),
    [
        ("confidence", SignalStage.WINDOW),
        ("margin", SignalStage.PROMPT),
        ("ease", SignalStage.WINDOW),
        ("tokens", SignalStage.WHOLE),
    ],
)
def test_another_signal_is_a_fault(signal: str, stage: SignalStage) -> None:
    """One that is never computed, or not at that stage."""
    (reported,) = calibration_faults(replace(FILE, signal=signal, stage=stage))
    assert f"signal: the gateway cannot compute the signal `{signal}`" in reported


def test_another_bucket_is_a_fault_where_it_decides() -> None:
    """With a threshold of its own; not where it shares that of all other tasks."""
    own, shared = (
        replace(FILE, cuts=(*FILE.cuts, AcceptanceThreshold(0, "law", threshold))) for threshold in (0.2, 0.5)
    )
    (reported,) = calibration_faults(own)
    assert reported.startswith(
        "cuts[2].bucket: the gateway never computes the bucket `law`; it computes changing, chat,"
    )
    assert list(calibration_faults(shared)) == []


def test_every_signal_has_a_range() -> None:
    """And lies in it, whatever the tokens."""
    assert set(SIGNAL_RANGES) == set(SIGNALS)
    for tokens in ([(0.0, (0.0, -inf))], [(-9999.0, (-0.7, -0.7))], [(-1.0, (-1.0, -2.0)), (-0.1, (-0.1,))]):
        found = read_signals(tokens)
        for name in SIGNALS:
            least, most = signal_range(name)
            assert least <= found.value_of(name) <= most
