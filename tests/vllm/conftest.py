"""Real pods for the whole session, all started when the first is asked for, and their logs for a failed test."""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.subject import CONTRACTS, Subject, acquaint
from tests.vllm.children import Child
from tests.vllm.gateways import Gateway, in_front
from tests.vllm.pods import PLANS, Pod, running, start

pytest.register_assert_rewrite(*CONTRACTS)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)
            # A fixture may wait minutes for the pods; the test itself may not.
            item.add_marker(pytest.mark.timeout(600, func_only=True))


STARTED = pytest.StashKey[list[Pod]]()
"""The pods of the session, from when they are started until a test has them."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the pods of the session at once where a later test wants them: modules before it have pods of their own."""
    wanted = [item for item in session.items if "all_pods" in getattr(item, "fixturenames", ())]
    if wanted and not session.config.option.collectonly:
        session.stash[STARTED] = start(PLANS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End pods that no test has taken: the session has ended early."""
    for pod in session.stash.get(STARTED, []):
        pod.kill()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def all_pods(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Pod, ...]]:
    started = request.session.stash.get(STARTED, [])
    request.session.stash[STARTED] = []
    async with running(PLANS, started) as pods:
        yield pods


@pytest.fixture(scope="session")
def pods(all_pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Two alike, that tell what was warm."""
    return all_pods[:2]


@pytest.fixture(scope="session")
def terse_pod(all_pods: tuple[Pod, ...]) -> Pod:
    """One that does not tell what was warm, and takes few requests at once."""
    return all_pods[2]


@pytest.fixture(scope="session")
def embedding_pod(all_pods: tuple[Pod, ...]) -> Pod:
    """One that makes vectors."""
    return all_pods[3]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(all_pods: tuple[Pod, ...]) -> AsyncIterator[Gateway]:
    """In front of all pods, three models. Each module has one of its own, that knows nothing of what others asked."""
    async with in_front([pod.url for pod in all_pods]) as started:
        yield started


@pytest.fixture(scope="session")
def pod_url(request: pytest.FixtureRequest) -> str:
    """A pod to be asked without the gateway: one of ours, or the one that the environment names (`VLLM_POD=URL`)."""
    if url := os.environ.get("VLLM_POD"):
        return url
    pods: tuple[Pod, ...] = request.getfixturevalue("pods")
    return pods[0].url


@pytest.fixture
async def subject(pod_url: str) -> Subject:
    return await acquaint(pod_url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the servers' last words to what is shown of a failed test."""
    report = yield
    if report.failed:
        report.sections += [(repr(child), child.last_words()) for child in servers_of(item)]
    return report


def servers_of(item: pytest.Item) -> Iterator[Child]:
    """The pods and the gateway that a test was given."""
    for value in getattr(item, "funcargs", {}).values():
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Child):
                yield child
