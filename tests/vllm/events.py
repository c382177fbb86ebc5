"""Pods that publish their KV events, and when a gateway that follows them decides by what it has heard."""

import json
from collections.abc import Mapping

from tests.conformance.subject import Subject
from tests.vllm.children import free_port
from tests.vllm.gateways import Gateway
from tests.vllm.load import Load
from tests.vllm.pods import PodPlan


def publishing(model: str, blocks: int, context_tokens: int, *more: str) -> PodPlan:
    """Publishes its KV events on a port that it tells only when it is asked, and remembers them for late joiners."""
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:0", "topic": "kv"}
    events["replay_endpoint"] = f"tcp://127.0.0.1:{free_port()}"
    flags = ("--num-gpu-blocks-override", str(blocks), "--max-model-len", str(context_tokens))
    # Else a CPU gives every layer the rules of full attention.
    groups = ("--no-disable-hybrid-kv-cache-manager",)
    events_flag = ("--kv-events-config", json.dumps(events))
    return PodPlan(model, flags=(*flags, *groups, *events_flag, *more), environment={"VLLM_SERVER_DEV_MODE": "1"})


def stated(gateway: Gateway, event: str) -> int:
    """How often the gateway has logged something."""
    return sum(line["event"] == event for line in gateway.logged())


async def believed(gateway: Gateway, front: Subject, headers: Mapping[str, str] | None = None) -> None:
    """Ask until the events decide: a subscription takes a moment, and is told to the workers a moment later."""
    load = iter(Load(front.model, seed=0))
    for _ in range(200):
        path, body, _ = next(load)
        exchange = await front.post(path, body, headers)
        if (
            exchange.status == 200
            and gateway.receipt(exchange.headers["x-hearth-request-id"]).cache_source == "precise"
        ):
            return
    raise AssertionError("no request was decided by events")
