"""A port of a network card that carries KV is not active."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the state of the ports of pods that have a connector."""
    for pod in scene.facts.pods:
        moves_kv = pod.role is not Role.EITHER or (pod.flags is not None and pod.flags.connector is not None)
        ports = () if pod.hardware is None else pod.hardware.ports
        known = [port for port in ports if port.state]
        if not known:
            if pod.role is not Role.EITHER and (pod.flags is None or pod.flags.connector is not None):
                yield Missing(pod.pool, pod.address, "the state of network ports is not known")
            continue
        down = [port.name for port in known if port.state != "active"]
        if down and moves_kv:
            evidence = (Evidence("ports that are not active", ", ".join(down), None, "", "", pod.address),)
            yield Indication(pod.pool, pod.address, evidence, 0.95)


RECIPE = Recipe(
    name="rdma_port_down",
    title="An RDMA port is down",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="KV transfers of one node are slow, fail, or run over another card.",
    looks_at="The node agent reports a port of the pod's host in a state other than `active`.",
    cause="A cable, switch port or driver of that port failed.",
    first_step="Check the cable and switch port of the named card, with `ibstat` on the host.",
    helped="The port's state becomes `active`, and bandwidth returns to that of the peers.",
    wrong_if="The port was never cabled: then leave it out of `UCX_NET_DEVICES`.",
    look=look,
    explains=("tcp_fallback", "slow_transfers", "transfer_queue", "transfers_failing"),
)
