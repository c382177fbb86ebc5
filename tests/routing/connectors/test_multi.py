"""Several connectors in one engine: the one that has words to pass speaks for all."""

from routing.connectors.multi import MultiConnector, children_of
from routing.connectors.nixl import NixlPull
from routing.facts import PodFacts
from tests.routing.connectors.meetings import meeting


def test_children_are_named_in_brackets() -> None:
    """Of another connector, or of one that does not tell, there are none."""
    assert children_of("MultiConnector(NixlConnector, MooncakeStoreConnector)") == (
        "NixlConnector",
        "MooncakeStoreConnector",
    )
    assert children_of("MultiConnector") == children_of("NixlConnector") == children_of("MultiConnector()") == ()


def test_it_speaks_for_its_child_and_requests_the_same_children() -> None:
    """Pods with other children beside are no partners."""
    multi = MultiConnector(NixlPull(), ("NixlConnector", "X"))
    assert multi.ask(meeting()) == NixlPull().ask(meeting())
    assert multi.group(PodFacts()) != MultiConnector(NixlPull(), ("NixlConnector", "Y")).group(PodFacts())
    assert multi.may_prefill(PodFacts())
    assert multi.may_decode(PodFacts())
    assert multi.terms is NixlPull.terms
