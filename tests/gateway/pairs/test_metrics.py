"""What is shown of pairs: by connector and end, by reason, and how long hand-overs took."""

from gateway.attempts.attempt import AttemptResult, AttemptStatus
from gateway.pairs.metrics import PairMetrics
from tests.gateway.pairs.played import ANSWERED, PairCarrier, Part, led


def test_pairs_and_fallbacks_are_counted() -> None:
    """A stalled hand-over, and then an answer from one pod."""
    _, stage = led(
        PairCarrier(decodes=[Part(AttemptResult(AttemptStatus.BROKEN, 500)), Part(ANSWERED, token_after_s=0.05)])
    )
    _, good = led(PairCarrier())
    tallies = PairMetrics()
    for outcome in (*stage.outcomes, *good.outcomes):
        tallies.on_outcome(outcome)
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in tallies.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert shown["hearth_pairs_total", "NixlConnector", "broken"] == 1
    assert shown["hearth_pairs_total", "NixlConnector", "answered"] == 1
    assert shown["hearth_pair_fallbacks_total", "transfer_failed"] == 1
    assert shown["hearth_pair_transfer_seconds_total", "NixlConnector", "real"] > 0
