"""Transfers of KV fail, or what was kept for them expires unread."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

MIN_FAILED = 2.0
MIN_SHARE = 0.02


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at failed transfers of engines that fetch."""
    for pod, engine in scene.engines():
        held = engine.transfers
        if held is None or held.failed is None:
            if pod.role is Role.DECODE:
                yield Missing(pod.pool, pod.address, "failed transfers are not reported")
            continue
        # Newer pages count handshakes among failed transfers, older ones do not: they are not added up.
        failed = max(held.failed, held.failed_handshakes or 0.0)
        if failed >= max(MIN_FAILED, MIN_SHARE * ((held.count or 0.0) + failed)):
            evidence = (
                Evidence("failed transfers", held.failed, held.count, "succeeded", "in the window", pod.address),
                Evidence("failed handshakes", held.failed_handshakes, None, "", "in the window", pod.address),
                Evidence("expired on this pod", held.expired, None, "", "requests", pod.address),
            )
            yield Indication(pod.pool, pod.address, evidence, 0.95)


RECIPE = Recipe(
    name="transfers_failing",
    title="KV transfers fail",
    question=Question.TRANSFER,
    severity=Severity.FAILING,
    symptom="Requests of split pools fail, or are computed a second time on the decode pod.",
    looks_at=(
        "`nixl_num_failed_transfers`, with failed handshakes as the plugin counts them, grew by two or more and by "
        "2 % of transfers."
    ),
    cause="The decode pod cannot read the prefill pod's memory: a broken path, a gone peer, or unlike memory layouts.",
    first_step=(
        "Check the path between the named pod and its prefill pods with the transport's own test (`ucx_perftest`)."
    ),
    helped="The test names the card or host that fails; after its repair failed transfers stop growing.",
    wrong_if="The path is sound in both directions: then compare the KV layouts of both pods.",
    look=look,
    depends_on_requests=False,
    explains=(
        "transfers_stalled",
        "transfer_queue",
        "slow_transfers",
        "prefill_pool_unused",
        "decode_starved_by_prefill",
    ),
)
