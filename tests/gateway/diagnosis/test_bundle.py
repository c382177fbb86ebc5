"""The support bundle: what it holds can be diagnosed elsewhere, and what must not be shown is not in it."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.server_process import hash_seed_digest, settings_from_command
from diagnosis.baseline import Baseline, Level
from diagnosis.distribution import distribution_of
from diagnosis.facts import FleetFacts
from gateway.config.discovery import DiscoveredPod
from gateway.config.doctor import DoctorMode
from gateway.diagnosis.collector import MAX_VERSION_REQUESTS, FactCollector
from gateway.diagnosis.doctor import KEPT_FACTS, LOOK_INTERVAL_S, NOT_LOOKED, Look
from gateway.diagnosis.view import InvalidBundle, baseline_of, diagnose_bundle, facts_of, read_bundle, show_bundle
from gateway.discovery.source import ServerReport
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.scrape import MetricsPage
from routing.decision.router import Router
from routing.facts import PodFacts
from routing.pod_record import EngineLoad
from routing.pods import EngineShape, Pod, PodState
from routing.server_settings import ServerSettings
from scorers.registry import routings
from tests.agent.test_server_settings import COMMAND, SECRET, VARIABLES
from tests.diagnosis.scene import engine, fleet, gaps, later, pod
from tests.diagnosis.test_diagnose import each_look, raised, watched
from tests.gateway.samples import an_attempt, an_outcome

URL = "http://10.0.0.7:8000"

MODEL_PATH = f"/models/{SECRET}/m"

PAGE = b"""
vllm:num_requests_running{engine="0",model_name="x"} 1.0
vllm:generation_tokens_total{engine="0",model_name="x"} %d
vllm:cache_config_info{engine="0",block_size="16",enable_prefix_caching="False"} 1.0
"""


class Scene:
    """A collector before one pod whose every text holds a secret."""

    def __init__(self, tmp_path: Any) -> None:
        settings = settings_from_command(COMMAND, VARIABLES, tmp_path)
        facts = PodFacts(
            version=f"0.32 {SECRET}",
            revision=SECRET,
            kv_dtype=SECRET,
            kv_connector=f"Nixl{SECRET}",
            engine_id=SECRET,
            models=(MODEL_PATH,),
        )
        self.router = Router(routings()["warm"])
        self.router.put_pod(Pod(URL, PodState.READY, models=frozenset((MODEL_PATH,)), facts=facts))
        self.router.reshape_pod(URL, (EngineShape(),))
        watched = WatchedPod(DiscoveredPod(URL, facts=facts))
        report = ServerReport("node-7", 0.0, settings)
        census = SimpleNamespace(servers=lambda: {URL: report})
        self.now_s = 1_795_186_398.0
        self.collector = FactCollector(
            self.router,
            cast("Any", SimpleNamespace(pods=(watched,), census=census)),
            clock=lambda: self.now_s - 1_795_186_000.0,
            wall_clock=lambda: self.now_s,
            count_fresh=lambda: None,
            wanted=frozenset,
        )

    async def looks(self, count: int = 6) -> list[Look]:
        """Look every 5 s, with a page and a request in between."""
        looks = []
        for number in range(count):
            self.collector.take_page(URL, PAGE % (100 * number), "Fri, 20 Nov 2026 14:53:18 GMT")
            request = an_outcome(attempts=(an_attempt(engine=URL, role="either"),))
            request.model, request.error = MODEL_PATH, SECRET
            self.collector.requests.on_outcome(request)
            looks.append(Look(await self.collector.collect(), NOT_LOOKED))
            self.now_s += 5.0
        return looks


async def test_a_bundle_is_diagnosed_offline(tmp_path: Any) -> None:
    """By its facts, look after look: what a gateway would raise after 15 s is raised."""
    looks = await Scene(tmp_path).looks()
    baseline = Baseline(1.0, "", levels={("pool", "kv"): Level({3: (1.0, 2.0)})})
    bundle = read_bundle(show_bundle(looks, baseline, DoctorMode.ADVISE))
    assert facts_of(bundle) == [look.facts for look in looks]
    held = baseline_of(bundle)
    assert held is not None
    assert held.levels == baseline.levels
    found = await asyncio.to_thread(diagnose_bundle, bundle)
    assert found is not None
    assert "chunked_prefill_off" in {finding.recipe for finding in found.findings} | {gap.recipe for gap in found.gaps}
    (pod,) = looks[-1].facts.pods
    assert pod.flags is not None
    assert (pod.flags.chunked_prefill, pod.flags.speculative_method, pod.flags.block_size) == (False, "ngram", 16)
    assert pod.engines[0].generation_tokens == 500
    assert pod.requests is not None
    assert pod.requests.requests == 6
    assert abs(looks[0].facts.clock_offsets_s[URL]) <= 1.0


def test_a_finding_whose_evidence_must_last_is_raised_offline() -> None:
    """For longer than a bundle has looks: by the time at which the gateway first saw it. None is where that is gone."""
    slow = fleet(pod("c0", engines=(engine(token_gap=gaps((0.045, 900)), prefill=distribution_of([0.12] * 40)),)))

    def offline(*spans: tuple[FleetFacts, float]) -> list[str]:
        seen = watched(*spans)
        facts = [later(held, LOOK_INTERVAL_S * number) for number, held in enumerate(each_look(*spans))]
        looks = [Look(*pair) for pair in zip(facts, seen, strict=True)]
        found = diagnose_bundle(read_bundle(show_bundle(looks[-KEPT_FACTS:], None, DoctorMode.ADVISE)))
        assert found is not None
        return raised(found)

    assert offline((slow, 60.0)) == ["slower_than_peers"]
    assert offline((slow, 25.0)) == []
    assert offline((slow, 60.0), (fleet(), 30.0)) == []


async def test_no_planted_secret_is_in_a_bundle(tmp_path: Any) -> None:
    """Of arguments, environment, versions, model paths and errors; nor the hash seed."""
    body = show_bundle(await Scene(tmp_path).looks(), None, DoctorMode.ACT)
    for part in (SECRET, *SECRET.split("/"), "api-key", "HF_TOKEN", "hf-token", "/models"):
        assert part.encode() not in body
    assert VARIABLES["PYTHONHASHSEED"] == hash_seed_digest("77")
    assert b'"77"' not in body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"schema": 2}', b'{"schema": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_bundle_is_rejected(body: bytes) -> None:
    """With what is wrong."""
    with pytest.raises(InvalidBundle):
        read_bundle(body)


async def test_words_of_a_later_version_are_passed_over(tmp_path: Any) -> None:
    """A bundle may come from a newer gateway."""
    document = json.loads(show_bundle(await Scene(tmp_path).looks(1), None, DoctorMode.ADVISE))
    document["mood"] = "good"
    document["looks"][0]["facts"]["pods"][0]["colour"] = "red"
    assert len(read_bundle(json.dumps(document).encode()).looks) == 1


async def test_one_pod_whose_facts_cannot_be_made_leaves_the_others(tmp_path: Any) -> None:
    """Reported, and left out."""
    scene = Scene(tmp_path)
    (watched,) = scene.collector._watcher.pods
    strange = WatchedPod(DiscoveredPod("http://10.0.0.8:8000"))
    report = ServerReport("node-8", 0.0, ServerSettings({"block-size": "x"}))
    census = SimpleNamespace(servers=lambda: {strange.url: report})
    scene.collector._watcher = cast("Any", SimpleNamespace(pods=(strange, watched), census=census))
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    facts = await scene.collector.collect()
    assert [pod.address for pod in facts.pods] == [URL]
    assert len(reported) == 1


async def test_versions_are_requested_at_the_same_time(tmp_path: Any) -> None:
    """For their versions: one after the other they would delay every look."""
    scene = Scene(tmp_path)
    pods = [WatchedPod(DiscoveredPod(f"http://10.0.1.{number}:8000"), metrics=MetricsPage()) for number in range(6)]
    waiting, all_wait = 0, asyncio.Event()

    async def read_version(url: str) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == MAX_VERSION_REQUESTS:
            all_wait.set()
        await all_wait.wait()
        return "0.32.0"

    census = SimpleNamespace(servers=dict)
    watcher = SimpleNamespace(pods=tuple(pods), census=census, read_version=read_version)
    scene.collector._watcher = cast("Any", watcher)
    async with asyncio.timeout(60):
        facts = await scene.collector.collect()
    versions = [None if pod.build is None else pod.build.version for pod in facts.pods]
    assert versions == ["0.32.0"] * MAX_VERSION_REQUESTS + [None] * 2


async def test_what_a_plugin_reports_completes_what_a_page_lacks(tmp_path: Any) -> None:
    """Preemptions and transfers of a pod whose page has neither, from the record of its agent."""
    scene = Scene(tmp_path)
    looks = []
    for number in range(3):
        counters = {"preemptions": 2.0 * number, "prefix_queries": 100.0, "transfers": 4.0 * number, "transfer_s": 1.0}
        report = ServerReport("node-7", scene.now_s - 1_795_186_000.0, loads=(EngineLoad(counters=counters),))
        scene.collector._watcher.census.servers = lambda held=report: {URL: held}  # type: ignore[misc, method-assign]
        looks += await scene.looks(1)
    (pod,) = looks[-1].facts.pods
    (window,) = pod.engines
    assert window.preemptions == 4
    assert window.transfers is not None
    assert window.transfers.count == 8
    assert window.generation_tokens == 0
    scene.collector._watcher.census.servers = dict  # type: ignore[method-assign]
    (pod,) = (await scene.looks(1))[-1].facts.pods
    assert pod.engines[0].preemptions == 4
    scene.now_s += 30
    (pod,) = (await scene.looks(1))[-1].facts.pods
    assert pod.engines[0].preemptions is None
