"""Labelled examples to try calibration on."""

from math import nan
from random import Random

from cascade.calibration.examples import Example
from cascade.calibration_file import ANY_BUCKET


def example(
    signal: float = 0.0, *, small: float = 1.0, large: float = 1.0, bucket: str = ANY_BUCKET, cost: float = 0.1
) -> Example:
    """Two models; the large answer costs 1, and a small one given up is paid for."""
    return Example(bucket, (small, large), (signal,), (cost, 1.0), (cost,))


def informative_examples(count: int, *, seed: int = 1, shift: float = 2.0, bucket: str = ANY_BUCKET) -> list[Example]:
    """A fifth gains from the large model, and its signal is lower by `shift` standard deviations."""
    random = Random(seed)
    drawn = []
    for _ in range(count):
        gains = random.random() < 0.2
        drawn.append(example(random.gauss(-shift * gains, 1.0), small=float(not gains), bucket=bucket))
    return drawn


def three_models(count: int, *, seed: int = 1) -> list[Example]:
    """The middle model answers half of what the small one cannot."""
    random = Random(seed)
    drawn = []
    for _ in range(count):
        gains = random.random() < 0.3
        half = gains and random.random() < 0.5
        scores = (float(not gains), float(not half), 1.0)
        signals = (random.gauss(-2.0 * gains, 1.0), random.gauss(-2.0 * half, 1.0))
        drawn.append(Example(ANY_BUCKET, scores, signals, (0.05, 0.25, 1.0), (0.05, 0.25)))
    return drawn


UNKNOWN = example(nan)
