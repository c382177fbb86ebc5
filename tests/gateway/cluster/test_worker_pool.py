"""One process as long as one is enough."""

import pytest

from gateway.cluster.worker_pool import needs_index_process, needs_supervisor
from gateway.config.loading import load_settings


@pytest.mark.parametrize(
    ("variables", "needed"),
    [({}, False), ({"HEARTH_PROCESSES": "2"}, True), ({"HEARTH_REDIS": "redis://localhost"}, True)],
)
def test_a_supervisor_stands_over_more_than_one(variables: dict[str, str], needed: bool) -> None:
    """Several workers, or a worker and an index process; else nothing beside the gateway."""
    settings = load_settings({}, variables, None)
    assert needs_supervisor(settings) is needs_index_process(settings) is needed
