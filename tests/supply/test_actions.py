"""Actions beside the number of engines follow from findings and desired engines, and from nothing else."""

from __future__ import annotations

from routing.facts import Role
from supply.actions import MAX_ACTIONS, MAX_PODS, ActionKind, ProposedAction, SeenFault, propose_actions
from supply.desired import DesiredPool, SupplyReason


def pool(
    name: str, desired: int, present: int, needed: int | None = None, reason: SupplyReason = SupplyReason.LOAD
) -> DesiredPool:
    """A pool of a model of the same name."""
    unbounded = desired if needed is None else needed
    return DesiredPool(f"model-{name}", name, Role.EITHER, desired, unbounded, present, reason)


def test_findings_name_the_pods_concerned() -> None:
    """Recipes that no action mends are left out, and the list of pods is bounded."""
    urls = tuple(f"http://pod-{number}" for number in range(MAX_PODS + 1))
    faults = [SeenFault("hot_expert", "a", urls), SeenFault("idle_ranks", "b", urls[:1]), SeenFault("kv_pressure", "c")]
    assert propose_actions([], [*faults, SeenFault("tcp_fallback", "a")]) == (
        ProposedAction(ActionKind.EXPERT_REBALANCE, "a", "hot_expert", urls[:MAX_PODS]),
        ProposedAction(ActionKind.PARALLELISM, "b", "idle_ranks", urls[:1]),
        ProposedAction(ActionKind.PRECISION, "c", "kv_pressure"),
    )


def test_a_pool_that_grows_prewarms_graphs() -> None:
    """For as many engines as are to come; a pool that has what it should or shrinks does not."""
    assert propose_actions([pool("a", 5, 3), pool("b", 2, 2), pool("c", 1, 2)], []) == (
        ProposedAction(ActionKind.GRAPH_PREWARM, "a", "load", model="model-a", engines=2),
    )


def test_a_pool_that_may_not_grow_is_given_engines_of_another_model() -> None:
    """Of the pool with most to spare, no more than are missing or spare, and never of its own model."""
    short = pool("a", 2, 2, needed=4, reason=SupplyReason.NOT_GRANTED)
    assert propose_actions([short, pool("b", 1, 2), pool("c", 1, 4)], []) == (
        ProposedAction(ActionKind.SLEEP, "a", "not_granted", model="model-a", engines=2, giving_pool="c"),
    )
    assert propose_actions([short, pool("b", 2, 2)], []) == ()
    assert propose_actions([pool("a", 2, 2, needed=4, reason=SupplyReason.STALE), pool("c", 1, 4)], []) == ()


def test_the_list_is_bounded() -> None:
    """However many pools there are."""
    assert len(propose_actions([pool(f"p{number}", 2, 1) for number in range(100)], [])) == MAX_ACTIONS
