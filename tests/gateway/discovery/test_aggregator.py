"""Lists of several sources are one fleet, and the order of the sources says whom to believe."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.discovery import Found
from gateway.discovery.aggregator import Census, merged
from gateway.discovery.source import Tell
from routing.facts import PodFacts, Role
from routing.pods import Standing

A, B, C = (f"http://{name}:1" for name in "abc")


@dataclass(eq=False)
class Named:
    """A source that has only a name."""

    name: str
    trouble: str = ""

    async def follow(self, tell: Tell) -> None:
        """Nothing to tell."""


def test_a_pod_named_twice_is_one_pod() -> None:
    """Each fact from the first list that says it; what only one says is kept."""
    first = Found(A, facts=PodFacts(region="eu"), takes_priority=True)
    second = Found(A, "pool", PodFacts(region="us", zone="us-1", role=Role.DECODE))
    assert merged([[first], [second, Found(B)]]) == {
        A: Found(A, "pool", PodFacts(region="eu", zone="us-1", role=Role.DECODE), takes_priority=True),
        B: Found(B),
    }


def test_who_says_that_a_pod_is_leaving_is_believed() -> None:
    """Whoever it is: to send it nothing costs less than to lose a request."""
    leaving, unready = Found(A, held=Standing.DRAINING), Found(A, held=Standing.UNREADY)
    assert merged([[unready], [leaving]])[A].held is Standing.DRAINING
    assert merged([[leaving], [unready]])[A].held is Standing.DRAINING
    assert merged([[Found(A)], [unready]])[A].held is Standing.UNREADY


def test_a_silent_source_keeps_its_last_list() -> None:
    """Only its own next word replaces what it said."""
    one, other = Named("one"), Named("other")
    census = Census([one, other])
    assert census.take(one, (Found(A), Found(B)), 1.0)
    assert not census.is_whole()
    assert census.take(other, (Found(B),), 2.0)
    assert census.is_whole()
    assert census.take(other, (Found(C),), 3.0)
    assert set(census.wanted) == {A, B, C}
    assert census.named_by() == {A: ["one"], B: ["one"], C: ["other"]}
    told = census.last_word(one)
    assert told is not None
    assert told.at_s == 1.0


def test_the_same_word_again_is_no_news() -> None:
    """But it was said just now."""
    source = Named("one")
    census = Census([source])
    assert census.take(source, (Found(A),), 1.0)
    assert not census.take(source, (Found(A),), 5.0)
    told = census.last_word(source)
    assert told is not None
    assert told.at_s == 5.0


def test_a_source_in_the_place_of_another_inherits_its_list() -> None:
    """Until it speaks itself: a reload must not empty the fleet for a moment."""
    old, new = Named("static"), Named("static")
    census = Census([old])
    census.take(old, (Found(A),), 1.0)
    census.replace(old, new)
    assert census.is_whole()
    assert set(census.wanted) == {A}
    census.take(new, (Found(B),), 2.0)
    assert set(census.wanted) == {B}


@given(st.lists(st.lists(st.sampled_from((A, B, C)), unique=True), max_size=4))
def test_the_fleet_is_what_any_source_names(lists: list[list[str]]) -> None:
    """No more, no less, each once."""
    fleet = merged([Found(url) for url in urls] for urls in lists)
    assert set(fleet) == {url for urls in lists for url in urls}
    assert all(found.url == url for url, found in fleet.items())
