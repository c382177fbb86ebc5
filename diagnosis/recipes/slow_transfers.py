"""Transfers of KV reach less bandwidth than those of their peers, or than before."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.facts import PodObservation
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import bandwidth, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

SLOW = 0.5
"""Share of the reference's bandwidth."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the bandwidth of each pod's transfers."""
    for pod in scene.facts.pods:
        value = pod_figure(pod, bandwidth)
        if value is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "bytes or seconds of transfers are missing, or too few")
            continue
        found = slower_than(scene, pod, value)
        if found is None and scene.reference(pod, "bandwidth") is None:
            yield Missing(pod.pool, pod.address, "there are no peers and no baseline to compare transfers with")
        elif found is not None:
            yield Indication(pod.pool, pod.address, (found,), 0.85)


def slower_than(scene: Scene, pod: PodObservation, value: float) -> Evidence | None:
    """Return the evidence that a bandwidth is below half of the peers' or of the baseline's."""
    for basis, normal in (("peers", scene.peer_median(pod, bandwidth)), ("baseline", scene.normal(pod, "bandwidth"))):
        if normal is not None and value <= SLOW * normal:
            return Evidence("bandwidth of transfers", value, normal, basis, "bytes/s", pod.address)
    return None


RECIPE = Recipe(
    name="slow_transfers",
    title="KV transfers are slow",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="TTFT of split pools is high while prefill engines answer in time.",
    looks_at="`nixl_bytes_transferred` by `nixl_xfer_time_seconds` is half of the peers' or of the baseline's.",
    cause="The link of the named pod is shared, degraded, or negotiated at a lower rate.",
    first_step="Read the negotiated rate and the error counters of the named pod's network ports.",
    helped="The port that runs below its nominal rate is found; after its repair the bandwidth is that of the peers.",
    wrong_if="All ports run at full rate without errors: then look at descriptors for each gigabyte.",
    look=look,
    explains=("transfer_queue",),
)
