"""Pairs lose their KV: it does not reach the decoding pod in time, and no engine says that a transfer failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_LOST = 3.0
MIN_SHARE = 0.1
"""Lost pairs of a pod in the window, and their share of its pairs, from which they count."""

MORE_THAN_OTHERS = 3.0
"""Share of lost pairs by that of the other pods of the same role, from which the pod itself is at fault."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the pairs that lost their KV, as the gateway counts them, between the pods of each role."""
    for pool, pods in scene.pools.items():
        halves = [pod for pod in pods if pod.role is not Role.EITHER]
        if not halves:
            continue
        if all(pod.requests is None or pod.requests.lost_pairs is None for pod in halves):
            yield Missing(pool, "", "pairs and their KV are not counted")
            continue
        losing = [pod for pod in halves if _loses(pod)]
        at_fault = [pod for pod in losing if _is_alone(pod, halves)]
        named = at_fault or losing
        others = tuple(pod.address for pod in halves if pod not in named)
        for pod in named:
            yield Indication(pool, pod.address, (_evidence(pod, halves),), 0.85 if at_fault else 0.65, affected=others)


def _counts(pods: Sequence[PodObservation]) -> tuple[float, float]:
    """Return lost pairs, and all, of the pods of which both are known."""
    known = [
        (view.lost_pairs, view.pairs)
        for pod in pods
        if (view := pod.requests) is not None and view.lost_pairs is not None and view.pairs is not None
    ]
    return sum(lost for lost, _ in known), sum(pairs for _, pairs in known)


def _loses(pod: PodObservation) -> bool:
    lost, pairs = _counts((pod,))
    return lost >= MIN_LOST and lost >= MIN_SHARE * pairs


def _is_alone(pod: PodObservation, halves: Sequence[PodObservation]) -> bool:
    """Return whether others of its role lose far fewer of theirs; False where there are none to compare with."""
    lost, pairs = _counts((pod,))
    others_lost, others = _counts(_others(pod, halves))
    return others >= MIN_LOST and lost * others >= MORE_THAN_OTHERS * others_lost * pairs


def _others(pod: PodObservation, halves: Sequence[PodObservation]) -> list[PodObservation]:
    return [each for each in halves if each.role is pod.role and each is not pod]


def _evidence(pod: PodObservation, halves: Sequence[PodObservation]) -> Evidence:
    lost, pairs = _counts((pod,))
    others_lost, others = _counts(_others(pod, halves))
    normal = others_lost / others if others else None
    return Evidence("share of pairs that lost their KV", lost / pairs, normal, "peers", "", pod.address)


RECIPE = Recipe(
    name="transfers_stalled",
    title="KV transfers do not end",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="Requests of a split pool wait for seconds, and are then computed a second time on a decode pod.",
    looks_at=(
        "For 45 s three or more pairs of a pod in each window, and a tenth of its pairs, lost their KV: it did not "
        "come in time, or the decoding pod failed with it. The named pod loses three times the share of others of its "
        "role; where no pod stands out, all that lose pairs are named and the finding is not sure."
    ),
    cause="One end of the transfers does not answer: its side channel is stuck, or its packets are dropped on the way.",
    first_step=(
        "Read the connector's log lines of the named pod for the peer that it waits for (`NIXL`, `UCX`, `handshake`)."
    ),
    helped="The peer or device that they name answers again, and no more pairs lose their KV.",
    wrong_if="The log has no such line: then the decode engine is too busy to begin its transfers.",
    look=look,
    raise_after_s=45.0,
    explains=("slow_transfers", "decode_starved_by_prefill"),
)
