"""Transfers run over TCP although the pod has RDMA: seen by the bandwidth that they reach."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import bandwidth, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.recipes.slow_transfers import slower_than
from diagnosis.scene import Scene
from routing.facts import Role

MAX_SHARE = 0.15
"""Share of one port's nominal bandwidth below which transfers cannot have used RDMA."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the bandwidth of transfers with the nominal one of pods that permit TCP."""
    for pod in scene.facts.pods:
        value = pod_figure(pod, bandwidth)
        if value is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "bytes or seconds of transfers are missing, or too few")
            continue
        nominal = None if pod.hardware is None else pod.hardware.port_bytes_per_s
        transports = None if pod.environment is None else pod.environment.values.get("UCX_TLS")
        if nominal is None or transports is None:
            yield Missing(pod.pool, pod.address, "the ports' rate or `UCX_TLS` is not known")
            continue
        permits_tcp = "tcp" in transports.split(",") or transports == "all"
        slower = slower_than(scene, pod, value)
        is_known_normal = slower is None and scene.reference(pod, "bandwidth") is not None
        if permits_tcp and value <= MAX_SHARE * nominal and not is_known_normal:
            evidence = (
                Evidence("bandwidth of transfers", value, nominal, "nominal", "bytes/s", pod.address),
                Evidence("UCX_TLS", transports, None, "", "", pod.address),
                *((slower,) if slower else ()),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.9)


RECIPE = Recipe(
    name="tcp_fallback",
    title="Transfers fell back to TCP",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="KV transfers work, without errors, at a small share of what the network card can carry.",
    looks_at=(
        "Transfers reach less than 15 % of one port's nominal rate (the fastest of the host) and half of what the "
        "peers' or the baseline's do, where that is known, and `UCX_TLS` permits `tcp`."
    ),
    cause="UCX found no usable RDMA path to the peer and silently took TCP.",
    first_step=(
        "Remove `tcp` from `UCX_TLS` of the named pod, so that a missing RDMA path becomes an error that names it."
    ),
    helped="Transfers use RDMA and reach most of the nominal rate, or fail with the name of the device.",
    wrong_if="Transfers work without `tcp` at the same rate: then the link itself is slow.",
    look=look,
    explains=("slow_transfers", "transfer_queue", "uncollated_transfers"),
)
