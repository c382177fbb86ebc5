"""The samples of a page without its help."""

from __future__ import annotations

from diagnosis.readings import read_counts
from simulator.books import Books
from simulator.engine import Engine
from simulator.exposition import Subject, TransfersShown, render_metrics, render_samples
from simulator.options import Options
from simulator.profile import Profile
from simulator.sequence import Sequence
from simulator.transfer.side_channel import Counts

PROFILE = Profile(speculative_tokens=2, acceptance_rate=0.5, host_kv_tokens=10_000)


class Rank:
    def __init__(self) -> None:
        self.engine, self.books = Engine(PROFILE), Books(1.0)
        self.engine.step_book = self.books.steps


def test_the_samples_are_those_of_the_page() -> None:
    """For a pod with two ranks, speculation, offloading and transfers."""
    ranks = [Rank(), Rank()]
    ranks[0].engine.submit(Sequence("a", 300, 50, tuple(range(18))), 0.0)
    ranks[0].engine.advance(0.5)
    shown = TransfersShown("NixlConnector", Counts(transfers=3, transfer_s=0.5, bytes_moved=7e9, failed=1, queued=2))
    subject = Subject(Options(profile=PROFILE, engines=2), ranks, 4, (), shown)
    page, samples = read_counts(render_metrics(subject)), read_counts(render_samples(subject))
    assert samples == page
    assert page[0].scalars["spec_decode_num_drafts"] > 0
    assert page[0].scalars["nixl_num_failed_transfers"] == 1
    assert page[1].config["block_size"] == "16"
