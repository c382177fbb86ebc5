"""The routing bench's verdicts: against whom, by how much, and never met by what was not measured."""

from dataclasses import replace

import pytest

from bench.routing.contenders import OURS, RIVALS_LIVE
from bench.routing.kept import KEPT, Table, merged, read_tables
from bench.routing.loads import LOADS
from bench.routing.offline import Entry
from bench.routing.rows import Row, middle, tabulate
from bench.routing.targets import Target, agreement_targets, live_targets, offline_targets, replica_targets

MOONCAKE = LOADS[0]

ROW = Row(
    "a policy",
    hit=0.2,
    ttft_mean=1.0,
    ttft_p50=0.5,
    ttft_p90=2.0,
    ttft_p95=4.0,
    ttft_p99=10.0,
    wait_mean=1.0,
    wait_p90=2.0,
    wait_p99=3.0,
    tpot_p50=0.02,
    tpot_p99=0.4,
    within_slo=0.8,
    imbalance=1.1,
    failed=0,
)


def row(name: str, **figures: float) -> Row:
    return replace(ROW, name=name, **figures)


def short(targets: list[Target]) -> list[str]:
    return [str(target) for target in targets if not target.is_met]


def test_medians_are_of_each_figure_by_itself() -> None:
    """No single run need have all of them."""
    runs = [row("x", hit=0.1, ttft_p99=9.0), row("x", hit=0.3, ttft_p99=8.0), row("x", hit=0.2, ttft_p99=12.0)]
    assert (middle(runs).hit, middle(runs).ttft_p99) == (0.2, 9.0)


def test_the_table_is_aligned() -> None:
    """Names to the left, figures to the right."""
    lines = tabulate([ROW, row("another policy", ttft_p99=123.0)]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].startswith("another policy")


def test_virtual_first_tokens_are_held_against_the_best_other_row_of_each_point() -> None:
    """Three percent are near enough; hits need nine tenths of the most."""
    others = [row("quick", ttft_p50=0.4), row("steady", ttft_p99=9.0), row("sticky", hit=0.3)]
    good = row("warm", hit=0.27, ttft_p50=0.412, ttft_p95=4.0, ttft_p99=9.27)
    assert short(offline_targets(MOONCAKE, [*others, good])) == []
    bad = row("warm", hit=0.26, ttft_p50=0.413, ttft_p95=4.2, ttft_p99=9.28)
    failed = short(offline_targets(MOONCAKE, [*others, bad]))
    assert len(failed) == 4
    assert "quick" in failed[0]
    assert "sticky" in failed[3]


def test_live_figures_are_held_against_the_better_rival() -> None:
    """In each figure by itself; round robin is shown, not counted."""
    rivals = [row(RIVALS_LIVE[0], hit=0.2, wait_mean=2.0, ttft_p90=8.0), row(RIVALS_LIVE[1], hit=0.1, ttft_p90=5.0)]
    robin = row("smg round_robin", ttft_p99=1.0)
    ours = row(OURS, hit=0.194, wait_mean=0.3, ttft_p90=3.0, ttft_p99=7.5, tpot_p99=0.4)
    assert short(live_targets(MOONCAKE, [robin, *rivals, ours])) == []
    assert len(short(live_targets(MOONCAKE, [*rivals, replace(ours, wait_mean=0.31)]))) == 1
    assert len(short(live_targets(MOONCAKE, [*rivals, replace(ours, failed=1)]))) == 1
    assert live_targets(MOONCAKE, [robin, ours]) == []


def test_agentic_traffic_is_also_held_to_balance_and_slo() -> None:
    """The busiest pod in itself, the share within the SLO against the better rival."""
    rivals = [row(RIVALS_LIVE[0], within_slo=0.6), row(RIVALS_LIVE[1], within_slo=0.7)]
    ours = row(OURS, wait_mean=0.5, ttft_p90=1.5, ttft_p99=5.0, imbalance=1.25, within_slo=0.735)
    assert short(live_targets(LOADS[1], [*rivals, ours])) == []
    assert len(short(live_targets(LOADS[1], [*rivals, replace(ours, imbalance=1.26)]))) == 1
    assert len(short(live_targets(LOADS[1], [*rivals, replace(ours, within_slo=0.734)]))) == 1


def test_live_figures_are_held_against_the_same_requests_in_virtual_time() -> None:
    """A tenth either way, in each of four figures."""
    near = replace(ROW, ttft_mean=1.09, wait_mean=0.91, hit=0.181, imbalance=1.2)
    assert short(agreement_targets(MOONCAKE, near, ROW)) == []
    far = replace(ROW, ttft_mean=1.2, wait_mean=0.8, hit=0.1, imbalance=1.3)
    assert len(short(agreement_targets(MOONCAKE, far, ROW))) == 4


@pytest.mark.parametrize(("hit", "late_s", "met"), [(0.194, 4.4, 3), (0.193, 4.4, 2), (0.194, 4.41, 2)])
def test_several_gateways_are_held_against_one(hit: float, late_s: float, met: int) -> None:
    """0.97 of its hits, 1.1 times its TTFT p95, nothing failed."""
    targets = replica_targets(MOONCAKE, "live", ROW, row("four", hit=hit, ttft_p95=late_s), "four")
    assert sum(target.is_met for target in targets) == met


def test_what_was_not_measured_is_not_met() -> None:
    """And says why."""
    targets = replica_targets(MOONCAKE, "live", ROW, None, "four", "no redis-server")
    assert not any(target.is_met for target in targets)
    assert all("SKIP" in str(target) and "no redis-server" in str(target) for target in targets)


def test_a_row_says_how_many_gateways_and_what_they_report() -> None:
    """One is the policy's own name."""
    assert Entry("warm").name == "warm"
    assert Entry("warm", 4, None).name == "warm, 4 gateways, alone"
    assert Entry("warm", 16, 0.02).name == "warm, 16 gateways, news 20 ms"


def test_what_was_printed_is_read_back() -> None:
    """Heads, rows and notes; what is no table is passed over."""
    table = Table(MOONCAKE.name, "live", f"{MOONCAKE.name}, first 10", (ROW, row("b, 4 of it", hit=0.3)), "A note.")
    page = f"a head\n\nwords\nmore words\n\n{table}\n\nok    something: wanted\n"
    assert read_tables(page, [MOONCAKE.name]) == [table]


def test_rows_played_again_replace_those_of_the_same_name() -> None:
    """Others stay, and it is said that they are older; a table of another place stays as it was."""
    live = Table(MOONCAKE.name, "live", "old", (row("rival"), row("ours")))
    virtual = Table(MOONCAKE.name, "virtual", "old", (row("ours"),))
    anew = Table(MOONCAKE.name, "live", "new", (row("ours", hit=0.4), row("ours, 4 of it")), "A note.")
    first, second = merged([live, virtual], [anew])
    assert first == virtual
    assert second.head == "new"
    assert [(one.name, one.hit) for one in second.rows] == [("rival", 0.2), ("ours", 0.4), ("ours, 4 of it", 0.2)]
    assert second.note == f"A note.\n{KEPT}rival."
    assert merged([live], [replace(anew, rows=(row("rival"), row("ours")))]) == [
        replace(anew, rows=(row("rival"), row("ours")))
    ]
