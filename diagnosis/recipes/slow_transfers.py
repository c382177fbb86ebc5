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

SLOW_SOURCE = 1.5
MIN_LATER_S = 0.05
"""Seconds from a pod's prefill to the first token elsewhere by those of its peers, and beyond them, from which the pod
sends its KV slowly.
"""

MIN_HANDOVERS = 8


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the bandwidth of transfers to each pod, and the time that those from each prefill pod take."""
    sources = {pod.address: held for pod in scene.facts.pods if (held := _slow_source(scene, pod)) is not None}
    pools = {pod.pool for pod in scene.facts.pods if pod.address in sources}
    for pod in scene.facts.pods:
        if pod.address in sources:
            fetching = tuple(each.address for each in scene.pools[pod.pool] if each.role is Role.DECODE)
            yield Indication(pod.pool, pod.address, sources[pod.address], 0.85, affected=fetching)
            continue
        value = pod_figure(pod, bandwidth)
        if value is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "bytes or seconds of transfers are missing, or too few")
            continue
        found = slower_than(scene, pod, value)
        if found is None and scene.reference(pod, "bandwidth") is None:
            yield Missing(pod.pool, pod.address, "there are no peers and no baseline to compare transfers with")
        elif found is not None and not (pod.pool in pools and found.basis == "baseline"):
            # What is slow beside the baseline alone, as on all decode pods, comes from the slow source.
            yield Indication(pod.pool, pod.address, (found,), 0.85)


def _slow_source(scene: Scene, pod: PodObservation) -> tuple[Evidence, ...] | None:
    """Return the evidence that KV from a prefill pod takes longer than that of its peers, by mean and by median."""
    if pod.role is not Role.PREFILL or not scene.is_settled(pod):
        return None
    evidence = []
    for name, figure in (("mean", _mean_handover), ("median", _median_handover)):
        value, normal = figure(pod), scene.peer_median_of(pod, figure)
        if value is None or normal is None or value < max(SLOW_SOURCE * normal, normal + MIN_LATER_S):
            return None
        evidence.append(Evidence(f"prefill to first token, {name}", value, normal, "peers", "s", pod.address))
    return tuple(evidence)


def _mean_handover(pod: PodObservation) -> float | None:
    held = None if pod.requests is None else pod.requests.handover
    return None if held is None or held.count < MIN_HANDOVERS else held.mean


def _median_handover(pod: PodObservation) -> float | None:
    held = None if pod.requests is None else pod.requests.handover
    return None if held is None or held.count < MIN_HANDOVERS else held.quantile(0.5)


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
    looks_at=(
        "`nixl_bytes_transferred` by `nixl_xfer_time_seconds` of a decode pod is half of the peers' or of the "
        "baseline's; or requests that one pod prefilled take 1.5 times as long from there to the first token, by mean "
        "and median, as those of other prefill pods."
    ),
    cause="The link of the named pod is shared, degraded, or negotiated at a lower rate.",
    first_step="Read the negotiated rate and the error counters of the named pod's network ports.",
    helped="The port that runs below its nominal rate is found; after its repair the bandwidth is that of the peers.",
    wrong_if="All ports run at full rate without errors: then look at descriptors for each gigabyte.",
    look=look,
    explains=("transfer_queue",),
)
