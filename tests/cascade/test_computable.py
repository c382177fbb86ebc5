"""What a calibration file relies on must be something that the gateway computes."""

from dataclasses import replace
from math import inf

import pytest

from cascade.calibration_file import ANY_BUCKET, Cut, Evidence, LadderFile, Promise, Stage
from cascade.computable import file_faults, range_of, signal_fault
from cascade.signals.tokens import RANGES, SIGNALS, read_signals

FILE = LadderFile(
    *(("small", "large"), "margin", Stage.WINDOW, Promise(0.01, 0.95), Evidence(1_000, "sha256:00")),
    cuts=(Cut(0, ANY_BUCKET, 0.5), Cut(0, "code", inf)),
    is_promised=True,
)


def test_a_file_of_known_signals_and_buckets_has_no_fault() -> None:
    """At each stage by its own signals."""
    assert list(file_faults(FILE)) == []
    assert list(file_faults(replace(FILE, signal="ease", stage=Stage.PROMPT))) == []
    assert all(signal_fault(name, stage) is None for name in SIGNALS for stage in (Stage.WINDOW, Stage.WHOLE))


@pytest.mark.parametrize(
    ("signal", "stage"),
    [("confidence", Stage.WINDOW), ("margin", Stage.PROMPT), ("ease", Stage.WINDOW), ("tokens", Stage.WHOLE)],
)
def test_another_signal_is_a_fault(signal: str, stage: Stage) -> None:
    """One that is never computed, or not at that stage."""
    (told,) = file_faults(replace(FILE, signal=signal, stage=stage))
    assert f"signal: the gateway cannot compute the signal `{signal}`" in told


def test_another_bucket_is_a_fault_where_it_decides() -> None:
    """With a threshold of its own; not where it shares that of all other tasks."""
    own, shared = (replace(FILE, cuts=(*FILE.cuts, Cut(0, "law", threshold))) for threshold in (0.2, 0.5))
    (told,) = file_faults(own)
    assert told.startswith("cuts[2].bucket: the gateway never computes the bucket `law`; it computes changing, chat,")
    assert list(file_faults(shared)) == []


def test_every_signal_has_a_range() -> None:
    """And lies in it, whatever the tokens."""
    assert set(RANGES) == set(SIGNALS)
    for tokens in ([(0.0, (0.0, -inf))], [(-9999.0, (-0.7, -0.7))], [(-1.0, (-1.0, -2.0)), (-0.1, (-0.1,))]):
        found = read_signals(tokens)
        for name in SIGNALS:
            least, most = range_of(name)
            assert least <= found.named(name) <= most
