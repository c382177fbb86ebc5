"""The endpoint picker protocol, one test per MUST, with a real Envoy where the data plane has a part in it.

Where one of two pods is wanted it is the only one that may be chosen: between equals a coin decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from gateway.ext_proc.messages_pb2 import HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse
from simulator.pod import SimulatedPod
from tests.envoy.envoys import Way
from tests.envoy.scene import CHAT, Scene, a_scene, asking, until
from tests.gateway.ext_proc.speaking import EXT_PROC, calling

pytestmark = pytest.mark.asyncio(loop_scope="module")

SUBSET = "x-test-subset"
TALK = asking("It was the best of times, it was the worst of times. " * 60)
DESTINATION = "x-gateway-destination-endpoint"


def gie(pods: Sequence[SimulatedPod]) -> Way:
    """As gateways set up a picker: full duplex both ways, pods in a cluster, retries along the list."""
    return Way(
        "FULL_DUPLEX_STREAMED",
        "FULL_DUPLEX_STREAMED",
        trailers=True,
        retries=True,
        subset=SUBSET,
        pods=tuple(pod.url.removeprefix("http://") for pod in pods),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with a_scene(gie, extproc={"max_endpoints": 2}) as found:
        yield found


def first_message(
    *, subset: list[str] | str | None = None, headers: dict[str, str] | None = None, ends: bool = False
) -> bytes:
    """What Envoy says first of a request, in full duplex."""
    reported = ProcessingRequest()
    reported.protocol_config.request_body_mode = reported.protocol_config.response_body_mode = 4
    stated = {":method": "POST", ":path": CHAT, "content-type": "application/json", **(headers or {})}
    for name, value in stated.items():
        header = reported.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    if subset is not None:
        hint = reported.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        held = hint.fields[f"{DESTINATION}-subset"]
        if isinstance(subset, str):
            held.string_value = subset
        else:
            held.list_value.extend(subset)
    return reported.SerializeToString()


def body_message(text: bytes) -> bytes:
    reported = ProcessingRequest()
    reported.request_body.body, reported.request_body.end_of_stream = text, True
    return reported.SerializeToString()


async def requested(scene: Scene, **first: Any) -> ProcessingResponse:
    """What the picker says first of a request."""
    body = b'{"model":"big","messages":[{"role":"user","content":"Hi"}],"max_tokens":4}'
    async with calling(scene.picker) as caller:
        call = await caller.call(EXT_PROC)
        await call.log_event(first_message(**first))
        await call.log_event(body_message(body))
        return ProcessingResponse.FromString(await call.message())


def fields_of(stated: ProcessingResponse) -> dict[str, str]:
    mutation = stated.request_headers.response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


async def test_must_1_stream_requests_and_answers_in_full_duplex(scene: Scene) -> None:
    """Implement ext_proc in streaming mode: both bodies pass through the picker, and the receipt says so."""
    async with scene.post(asking(stream=True)) as answer:
        assert "[DONE]" in await answer.text()
    receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
    assert (receipt["frontend"], receipt["extproc_mode"]) == ("extproc", "full_duplex/full_duplex")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("is_list", [True, False])
async def test_must_2_pick_only_from_the_subset(scene: Scene, at: int, is_list: bool) -> None:
    """A list or a text, by ip:port; only those endpoints are named."""
    wanted = scene.endpoint(at)
    stated = await requested(scene, subset=[wanted] if is_list else wanted)
    assert fields_of(stated)[DESTINATION] == wanted


@pytest.mark.parametrize("subset", [[], ["10.1.1.1:80"], "10.1.1.1:80"])
async def test_must_2_reject_where_the_subset_leaves_no_one(scene: Scene, subset: list[str] | str) -> None:
    """An empty list, or nobody of ours: 503."""
    stated = await requested(scene, subset=subset)
    assert stated.immediate_response.status.code == 503


async def test_must_2_the_subset_holds_behind_envoy(scene: Scene) -> None:
    """As Envoy passes it on from a header."""
    for at in (0, 1):
        async with scene.post(asking(f"{at}"), headers={SUBSET: scene.endpoint(at)}) as answer:
            assert answer.status == 200
        receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
        assert receipt["attempts"][0]["engine"] == scene.pods[at].url
    async with scene.post(asking(), headers={SUBSET: "10.1.1.1:80"}) as answer:
        assert answer.status == 503


async def test_must_3_name_the_endpoint_by_header_and_metadata(scene: Scene) -> None:
    """Both, and both the same, as a list whose first is the best."""
    stated = await requested(scene)
    header = fields_of(stated)[DESTINATION]
    metadata = stated.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value
    assert header == metadata
    assert set(header.split(",")) == {scene.endpoint(0), scene.endpoint(1)}


async def test_must_3_envoy_falls_back_along_the_list() -> None:
    """The first is gone and nobody has noticed: the second serves, and the data plane says that it did."""
    async with a_scene(gie, extproc={"max_endpoints": 2}) as scene:
        async with scene.post(TALK) as answer:
            assert answer.status == 200
        first = await scene.receipt(answer.headers["x-hearth-request-id"])
        gone = next(pod for pod in scene.pods if pod.url == first["attempts"][0]["engine"])
        await gone.stop()
        async with scene.post(TALK) as answer:
            assert answer.status == 200


async def test_must_3_who_served_is_who_is_charged() -> None:
    """The first of the list fails it, Envoy goes on to the second: receipt and warmth are the second's, and stay so."""
    async with a_scene(gie, extproc={"max_endpoints": 2}) as scene:
        async with scene.post(TALK) as answer:
            first = await scene.receipt(answer.headers["x-hearth-request-id"])
        failing = first["attempts"][0]["engine"]
        (other,) = [pod.url for pod in scene.pods if pod.url != failing]
        async with scene.session.post(f"{failing}/faults", json={"kind": "error"}) as reported:
            assert reported.status == 200
        for _ in range(2):
            async with scene.post(TALK) as answer:
                assert answer.status == 200
            receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
            (attempt,) = receipt["attempts"]
            assert (attempt["engine"], attempt["result"]) == (other, "ok")
        async with scene.session.get(f"{other}/metrics") as reported:
            hits = [
                line for line in (await reported.text()).splitlines() if line.startswith("vllm:prefix_cache_hits_total")
            ]
        assert float(hits[0].rpartition(" ")[2]) > 0
        details = [receipt["error"] for receipt in await scene.receipts()]
        assert any(detail.startswith(f"{failing} failed") for detail in details)
        await scene.until_idle()


async def test_must_4_send_503_where_no_endpoint_is_ready() -> None:
    """As an immediate answer, with our reason; llm-d's header belongs to 429."""
    async with a_scene(gie) as scene:
        for pod in scene.pods:
            await pod.stop()

        async def is_refused() -> bool:
            async with scene.post(asking()) as answer:
                assert "x-llm-d-request-dropped-reason" not in answer.headers
                return answer.headers.get("x-hearth-reason") == "no_pod_ready" and int(answer.status) == 503

        await until(is_refused)


async def test_must_4_send_429_where_a_request_is_shed() -> None:
    """A limit that is used up is said by the picker, with when to come back."""
    tenants: dict[str, dict[str, Any]] = {"one": {"rpm": 1}}
    async with a_scene(gie, tenants=tenants) as scene:
        head = {"authorization": "Bearer sk-one"}
        async with scene.post(asking(), headers=head) as answer:
            assert answer.status == 200
        async with scene.post(asking(), headers=head) as answer:
            assert answer.status == 429
            assert "retry-after" in answer.headers


@pytest.mark.parametrize(
    ("service", "status"),
    [("", 1), ("liveness", 1), ("readiness", 1), ("envoy.service.ext_proc.v3.ExternalProcessor", 1)],
)
async def test_must_5_report_health_by_service(scene: Scene, service: str, status: int) -> None:
    """All three, and none at all."""
    async with calling(scene.picker) as caller:
        call = await caller.call("/grpc.health.v1.Health/Check")
        await call.log_event(HealthCheckRequest(service=service).SerializeToString(), ends=True)
        assert HealthCheckResponse.FromString(await call.message()).status == status
        assert await call.status() == "0"


async def test_must_5_be_unready_and_alive_without_pods() -> None:
    """Readiness falls with the last pod; liveness does not; a name that is none is not found."""
    async with a_scene(None) as scene:
        for pod in scene.pods:
            await pod.stop()
        async with calling(scene.picker) as caller:

            async def status(service: str) -> int | str:
                call = await caller.call("/grpc.health.v1.Health/Check")
                await call.log_event(HealthCheckRequest(service=service).SerializeToString(), ends=True)
                code = await call.status()
                return HealthCheckResponse.FromString(call.messages[0]).status if code == "0" else code

            async def is_unready() -> bool:
                return await status("readiness") == 2

            await until(is_unready)
            assert await status("liveness") == 1
            assert await status("nobody") == "5"


async def test_must_report_the_endpoint_that_served(scene: Scene) -> None:
    """What the data plane reports is taken note of: the pod that answered is the one on the receipt."""
    async with scene.post(asking(), headers={SUBSET: scene.endpoint(1)}) as answer:
        assert answer.status == 200
    receipt = await scene.receipt(answer.headers["x-hearth-request-id"])
    assert receipt["attempts"][0]["engine"] == scene.pods[1].url
    assert "served by" not in receipt["error"]


async def test_reflection_is_off(scene: Scene) -> None:
    """Nobody is told what services there are."""
    async with calling(scene.picker) as caller:
        call = await caller.call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        assert await call.status() == "12"


@pytest.mark.parametrize(
    "name",
    [DESTINATION, "x-prefiller-host-port", "x-data-parallel-rank", "x-encoder-hosts-ports", "authorization"],
)
async def test_nothing_a_client_sends_picks_its_destination(scene: Scene, name: str) -> None:
    """Such headers are taken out or overwritten, whatever they say."""
    stated = await requested(scene, headers={name: "10.6.6.6:666"})
    mutation = stated.request_headers.response.header_mutation
    assert name in mutation.remove_headers or "10.6.6.6" not in fields_of(stated)[name]
    async with scene.post(asking(), headers={name: "10.6.6.6:666"}) as answer:
        assert answer.status == 200
