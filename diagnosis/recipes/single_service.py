"""Several pods depend on one process for their transfers."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.finding import Evidence, Question, Severity
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Look for metadata services with one instance behind several pods."""
    for pool, pods in scene.pools.items():
        users: dict[str, int] = {}
        for pod in pods:
            if pod.metadata_service is not None:
                users[pod.metadata_service] = users.get(pod.metadata_service, 0) + 1
        for service, count in users.items():
            if service in scene.facts.single_services and count > 1:
                evidence = (Evidence("pods behind one service", float(count), service, "service", "pods"),)
                yield Indication(pool, "", evidence, 0.9)


RECIPE = Recipe(
    name="single_service",
    title="Transfers depend on one process",
    question=Question.TRANSFER,
    severity=Severity.ADVICE,
    symptom="Nothing yet: when the named process dies, every transfer of the pool fails.",
    looks_at=(
        "Several pods of a pool use one Mooncake bootstrap or master, etcd or LMCache proxy with a single instance."
    ),
    cause="The service that pods find each other by runs once.",
    first_step="Run a second instance of the named service behind the same address, and test its failover.",
    helped="Transfers go on while one of both instances is stopped in a test.",
    wrong_if="The address leads to several instances already: then list it as such in the configuration.",
    look=look,
)
