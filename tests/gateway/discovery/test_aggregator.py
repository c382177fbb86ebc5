"""Lists of several sources are one fleet, and the order of the sources says whom to believe."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.aggregator import PodAggregator, merge_pods
from gateway.discovery.source import PodsCallback
from routing.facts import PodFacts, Role
from routing.pods import PodState

A, B, C = (f"http://{name}:1" for name in "abc")


@dataclass(eq=False)
class Named:
    """A source that has only a name."""

    name: str
    trouble: str = ""

    async def follow(self, tell: PodsCallback) -> None:
        """Nothing to tell."""


def test_a_pod_named_twice_is_one_pod() -> None:
    """Each fact from the first list that says it; what only one says is kept."""
    first = DiscoveredPod(A, facts=PodFacts(region="eu"), takes_priority=True)
    second = DiscoveredPod(A, "pool", PodFacts(region="us", zone="us-1", role=Role.DECODE))
    assert merge_pods([[first], [second, DiscoveredPod(B)]]) == {
        A: DiscoveredPod(A, "pool", PodFacts(region="eu", zone="us-1", role=Role.DECODE), takes_priority=True),
        B: DiscoveredPod(B),
    }


def test_who_says_that_a_pod_is_leaving_is_believed() -> None:
    """Whoever it is: to send it nothing costs less than to lose a request."""
    leaving, unready = DiscoveredPod(A, held=PodState.DRAINING), DiscoveredPod(A, held=PodState.UNREADY)
    assert merge_pods([[unready], [leaving]])[A].held is PodState.DRAINING
    assert merge_pods([[leaving], [unready]])[A].held is PodState.DRAINING
    assert merge_pods([[DiscoveredPod(A)], [unready]])[A].held is PodState.UNREADY


def test_a_silent_source_keeps_its_last_list() -> None:
    """Only its own next word replaces what it said."""
    one, other = Named("one"), Named("other")
    census = PodAggregator([one, other])
    assert census.update(one, (DiscoveredPod(A), DiscoveredPod(B)), 1.0)
    assert not census.is_complete()
    assert census.update(other, (DiscoveredPod(B),), 2.0)
    assert census.is_complete()
    assert census.update(other, (DiscoveredPod(C),), 3.0)
    assert set(census.wanted) == {A, B, C}
    assert census.sources_by_pod() == {A: ["one"], B: ["one"], C: ["other"]}
    reported = census.last_snapshot(one)
    assert reported is not None
    assert reported.at_s == 1.0


def test_the_same_update_again_is_no_change() -> None:
    """But it was said just now."""
    source = Named("one")
    census = PodAggregator([source])
    assert census.update(source, (DiscoveredPod(A),), 1.0)
    assert not census.update(source, (DiscoveredPod(A),), 5.0)
    reported = census.last_snapshot(source)
    assert reported is not None
    assert reported.at_s == 5.0


def test_a_source_in_the_place_of_another_inherits_its_list() -> None:
    """Until it speaks itself: a reload must not empty the fleet for a moment."""
    old, new = Named("static"), Named("static")
    census = PodAggregator([old])
    census.update(old, (DiscoveredPod(A),), 1.0)
    census.replace(old, new)
    assert census.is_complete()
    assert set(census.wanted) == {A}
    census.update(new, (DiscoveredPod(B),), 2.0)
    assert set(census.wanted) == {B}


@given(st.lists(st.lists(st.sampled_from((A, B, C)), unique=True), max_size=4))
def test_the_fleet_is_what_any_source_names(lists: list[list[str]]) -> None:
    """No more, no less, each once."""
    fleet = merge_pods([DiscoveredPod(url) for url in urls] for urls in lists)
    assert set(fleet) == {url for urls in lists for url in urls}
    assert all(found.url == url for url, found in fleet.items())
