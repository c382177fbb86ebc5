"""The agent as a child process: beside real pods, registering them in a real Redis. Knows no gateway."""

import os
from collections.abc import Iterable

from tests.sources import ROOT
from tests.vllm.children import Child, bounds


class AgentChild(Child):
    """`hearth agent`. It listens on no port that could be asked: whether it works, Redis shows."""

    def __init__(self, name: str, redis_url: str, *flags: str, lifetime_s: int = 3600) -> None:
        agent = (str(ROOT / ".venv" / "bin" / "hearth"), "agent", "--redis", redis_url, "--name", name)
        # What the caller may have set is meant for another agent.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEARTH_")}
        words = (*bounds(lifetime_s), *agent, "--address", "127.0.0.1", *flags)
        super().__init__(f"agent-{name}", words, redis_url, inherited)


def found_on(ports: Iterable[int]) -> tuple[str, str]:
    """Flags that have it look for servers on these ports."""
    return "--ports", ",".join(map(str, ports))
