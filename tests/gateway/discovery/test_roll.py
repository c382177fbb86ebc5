"""An agent's word counts for its time, whatever becomes of the key that it stood in."""

from gateway.config.discovery import DiscoveredPod
from gateway.discovery.registry import AgentRegistry
from routing.facts import PodFacts, Role
from routing.pod_record import AgentRecord, RegisteredPod, RegistrationState
from routing.pods import PodState

A, B = RegisteredPod("http://a:1", PodFacts(role=Role.DECODE)), RegisteredPod("http://b:1")


def stated(*pods: RegisteredPod, agent: str = "n1", beat: int = 1, life: int = 1) -> AgentRecord:
    return AgentRecord(agent, beat, 15.0, pods, life)


def urls(roll: AgentRegistry) -> list[str]:
    return [pod.url for pod in roll.pods()]


def test_an_update_counts_for_its_time() -> None:
    """And each new one counts anew."""
    roll = AgentRegistry()
    assert roll.update(stated(A), 0.0)
    assert not roll.update(stated(A, beat=2), 10.0)
    assert not roll.expire(24.9)
    assert urls(roll) == [A.url]
    assert roll.expire(25.0)
    assert urls(roll) == []


def test_the_same_beat_again_is_no_new_update() -> None:
    """A key that nobody writes any more must not keep its pods alive."""
    roll = AgentRegistry()
    roll.update(stated(A), 0.0)
    assert not roll.update(stated(A), 14.0)
    assert roll.expire(15.0)


def test_an_old_update_counts_for_what_is_left_of_it() -> None:
    """Seen for the first time when it was about to end."""
    roll = AgentRegistry()
    roll.update(stated(A), 0.0, left_s=2.0)
    assert roll.expire(2.0)


def test_who_begins_a_new_life_counts_again() -> None:
    """An agent that was started again begins at its first beat."""
    roll = AgentRegistry()
    roll.update(stated(A, beat=900), 0.0)
    assert roll.update(stated(B, beat=1, life=2), 1.0)
    assert urls(roll) == [B.url]


def test_a_goodbye_takes_the_pods_at_once_and_for_good() -> None:
    """A word that was under way when it came does not bring them back."""
    roll = AgentRegistry()
    roll.update(stated(A, beat=5), 0.0)
    assert roll.update(stated(beat=6), 1.0)
    assert not roll.update(stated(A, beat=5), 1.1)
    assert urls(roll) == []
    assert roll.expire(16.0)
    assert not roll.knows("n1")


def test_after_an_outage_everybody_gets_time_to_speak() -> None:
    """Their keys have expired meanwhile; they themselves have not."""
    roll = AgentRegistry()
    roll.update(stated(A), 0.0)
    roll.extend_leases(100.0)
    assert not roll.expire(114.9)
    assert roll.expire(115.0)


def test_a_pod_that_drains_is_held() -> None:
    """And what is known of it comes along."""
    roll = AgentRegistry()
    roll.update(stated(RegisteredPod(A.url, A.facts, RegistrationState.DRAINING, takes_priority=True)), 0.0)
    assert roll.pods() == (DiscoveredPod(A.url, facts=A.facts, takes_priority=True, held=PodState.DRAINING),)


def test_a_pod_of_two_agents_is_one() -> None:
    """As the first of them by name tells it."""
    roll = AgentRegistry()
    roll.update(stated(RegisteredPod(A.url), agent="z"), 0.0)
    roll.update(stated(A, agent="a"), 0.0)
    assert roll.pods() == (DiscoveredPod(A.url, facts=A.facts),)


def test_there_is_room_for_so_many() -> None:
    """Who is known is heard all the same."""
    roll = AgentRegistry(max_agents=1)
    roll.update(stated(A), 0.0)
    assert not roll.update(stated(B, agent="n2"), 0.0)
    assert roll.update(stated(B, beat=2), 1.0)
    assert urls(roll) == [B.url]


def test_there_is_room_for_so_many_pods() -> None:
    """Of all agents together; who was there first stays, and what is forgotten makes room."""
    roll = AgentRegistry(max_pods=2)
    assert roll.update(stated(A), 0.0)
    assert not roll.update(stated(B, RegisteredPod("http://c:1"), agent="n2"), 0.0)
    assert urls(roll) == [A.url]
    assert roll.update(stated(B, agent="n2"), 10.0)
    assert not roll.update(stated(B, RegisteredPod("http://c:1"), agent="n2", beat=2), 11.0)
    assert roll.expire(16.0)
    assert roll.update(stated(B, RegisteredPod("http://c:1"), agent="n2", beat=3), 17.0)
