"""KV is sent in many small pieces: each piece has a fixed cost."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import descriptor_bytes, pod_figure
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

SMALL = 0.4
"""Share of the reference's bytes for each descriptor."""

MIN_BYTES = 8_192.0
"""Bytes for each descriptor that are small in any case."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the bytes of a descriptor with those of peers and of the baseline."""
    for pod in scene.facts.pods:
        value = pod_figure(pod, descriptor_bytes)
        if value is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "bytes or descriptors of transfers are missing, or too few")
            continue
        references = (
            ("peers", scene.peer_median(pod, descriptor_bytes), SMALL),
            ("baseline", scene.normal(pod, "descriptor_bytes"), SMALL),
            ("limit", MIN_BYTES, 1.0),
        )
        for basis, normal, share in references:
            if normal is not None and value <= share * normal:
                evidence = (Evidence("bytes for each descriptor", value, normal, basis, "bytes", pod.address),)
                yield Indication(pod.pool, pod.address, evidence, 0.9)
                break


RECIPE = Recipe(
    name="uncollated_transfers",
    title="KV transfers are not collated",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="Transfers take longer than their bytes explain.",
    looks_at=(
        "`nixl_bytes_transferred` by `nixl_num_descriptors` is below 40 % of the peers' or of the baseline's,"
        " or below 8 KiB."
    ),
    cause="Blocks are sent one by one: small blocks, or a layout in which neighbouring blocks do not lie side by side.",
    first_step="Give the named pod the block size of its peers (`--block-size`).",
    helped="Bytes for each descriptor rise to those of the peers, and `nixl_xfer_time_seconds` falls.",
    wrong_if="Descriptors are as large as the peers' and transfers stay slow: then the link is slow.",
    look=look,
    explains=("slow_transfers", "transfer_queue", "unlike_kv_formats"),
)
