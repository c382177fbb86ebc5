"""A port of a network card that carries KV is not active."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnosis.facts import NicPort
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene
from routing.facts import Role

HOST_CONNECTORS = frozenset(
    (
        *("OffloadingConnector", "SimpleCPUOffloadConnector", "DecodeBenchConnector"),
        *("ExampleConnector", "ExampleHiddenStatesConnector"),
    )
)
"""Connectors of vLLM that keep KV in the memory or files of their host: they use no network card."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look at the state of the ports of pods that have a connector."""
    for pod in scene.facts.pods:
        connector = None if pod.flags is None else pod.flags.connector
        moves_kv = pod.role is not Role.EITHER or (connector is not None and connector not in HOST_CONNECTORS)
        ports = () if pod.hardware is None else pod.hardware.ports
        known = [port for port in ports if port.state]
        if not known:
            if pod.role is not Role.EITHER and (pod.flags is None or pod.flags.connector is not None):
                yield Missing(pod.pool, pod.address, "the state of network ports is not known")
            continue
        used = _used(known, None if pod.environment is None else pod.environment.values.get("UCX_NET_DEVICES"))
        down = [port.name for port in used if port.state != "active"]
        if down and moves_kv:
            evidence = (Evidence("ports that are not active", ", ".join(down), None, "", "", pod.address),)
            yield Indication(pod.pool, pod.address, evidence, 0.95)


def _used(ports: Sequence[NicPort], devices: str | None) -> Sequence[NicPort]:
    """Return the ports that may carry KV by `UCX_NET_DEVICES`, as `mlx5_0:1,mlx5_1` or `^mlx5_2`; all if unknown."""
    if devices is None or devices == "all":
        return ports
    names = {each.replace(":", "/") for each in devices.lstrip("^=").split(",")}
    listed = [port for port in ports if port.name in names or port.name.partition("/")[0] in names]
    if devices.startswith("^"):
        return [port for port in ports if port not in listed]
    return listed


RECIPE = Recipe(
    name="rdma_port_down",
    title="An RDMA port is down",
    question=Question.TRANSFER,
    severity=Severity.DEGRADING,
    symptom="KV transfers of one node are slow, fail, or run over another card.",
    looks_at=(
        "The node agent reports a port of the pod's host in a state other than `active`. Where the pod's "
        "`UCX_NET_DEVICES` is known, only ports that it names count. The pod has a role, or a connector that sends KV "
        "to other hosts."
    ),
    cause="A cable, switch port or driver of that port failed.",
    first_step="Check the cable and switch port of the named card, with `ibstat` on the host.",
    helped="The port's state becomes `active`, and bandwidth returns to that of the peers.",
    wrong_if="The port was never cabled: then leave it out of `UCX_NET_DEVICES`.",
    look=look,
    depends_on_requests=False,
    explains=("tcp_fallback", "slow_transfers", "transfer_queue", "transfers_failing", "transfers_stalled"),
)
