"""Targets that what stands beside us reaches: Envoy, Kubernetes, agents and their servers, Redis, ladder files."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from typing import cast

from google.protobuf.message import DecodeError
from msgspec import Raw

from agent import server
from agent.loads import LoadListener
from cascade.calibration_json import InvalidCalibrationFile, read_calibration_file, write_calibration_file
from gateway.config.discovery import KubernetesSourceConfig
from gateway.discovery.kubernetes_objects import (
    label_selector,
    pods_of_slices,
    read_node,
    read_pod,
    read_pool,
    read_slice,
)
from gateway.ext_proc.http2.connection import Http2Connection
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.http2.stream import GrpcStream, GrpcStreamHandler
from gateway.ext_proc.listener import GrpcListener, StreamCounter
from gateway.ext_proc.messages import split_large_body
from gateway.ext_proc.messages_pb2 import ProcessingRequest
from gateway.http.client_request import BodyBudget
from routing.pod_record import InvalidRecord, read_record, write_record
from tests.fuzz.target import Target, cut, split

ROOM = 1 << 20

UNREADABLE = (ValueError, RecursionError)
"""What whoever watches Kubernetes takes for an object that cannot be read."""


class Deaf(asyncio.Transport):
    """Takes whatever is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def write(self, raw: bytes | bytearray | memoryview) -> None:
        assert raw

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


class Parrot(GrpcStreamHandler):
    """Says every message back, and ends when it is told to."""

    def __init__(self, stream: GrpcStream) -> None:
        self.stream = stream

    def on_message(self, message: bytes) -> None:
        self.stream.send(message)

    def on_end(self) -> None:
        self.stream.finish()

    def on_too_large(self) -> None:
        self.stream.finish(8, "too much")


@cache
def a_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def feed_http2(raw: bytes) -> None:
    """Frames and header blocks in any pieces: whatever they are, no room stays taken when the connection is gone."""
    steer, raw = split(raw)

    async def hear() -> None:
        budget, deaf = BodyBudget(ROOM), Deaf()
        port = GrpcListener({b"/test.Echo/Echo": Parrot}, budget, StreamCounter(100), Http2Limits())
        connection = cast("Http2Connection", port.protocol())
        connection.connection_made(deaf)
        for piece in cut(raw, steer):
            if not deaf.is_over:
                connection.data_received(piece)
        await asyncio.sleep(0)
        connection.check(asyncio.get_running_loop().time() + 1e6)
        connection.connection_lost(None)
        assert budget.held_bytes == 0
        port.close()

    a_loop().run_until_complete(hear())


def feed_extproc(raw: bytes) -> None:
    """Envoy's messages: what is cut out of one lies within it, whatever protobuf says of the rest."""
    found = split_large_body(raw) if raw else None
    if found is None:
        return
    with contextlib.suppress(DecodeError):
        ProcessingRequest.FromString(raw)
    assert found[1] in raw


def feed_record(raw: bytes) -> None:
    """What an agent has written into Redis: read or refused, and what was read can be written again."""
    with contextlib.suppress(InvalidRecord):
        record = read_record(raw)
        assert read_record(write_record(record)) == record


def feed_kubernetes(raw: bytes) -> None:
    """Objects of Kubernetes."""
    place = KubernetesSourceConfig()
    written = Raw(raw)
    with contextlib.suppress(*UNREADABLE):
        read_pod(written, place)
    with contextlib.suppress(*UNREADABLE):
        read_node(written, place)
    with contextlib.suppress(*UNREADABLE):
        pods_of_slices([read_slice(written)], place, {})
    with contextlib.suppress(*UNREADABLE):
        label_selector(read_pool(written))


def feed_calibration(raw: bytes) -> None:
    """A cascade's thresholds, from a file."""
    with contextlib.suppress(InvalidCalibrationFile, UnicodeDecodeError):
        file = read_calibration_file(raw)
        assert read_calibration_file(write_calibration_file(file)) == file


def feed_agent(raw: bytes) -> None:
    """What servers of a node tell its agent."""
    for reported in (
        server.facts_from_version(raw),
        server.facts_from_models(raw),
        server.facts_from_metrics(raw),
        server.facts_from_event_sources(raw, "10.0.0.1"),
        server.facts_from_bootstrap(raw),
        server.facts_from_server_info(raw, "10.0.0.1")[0],
    ):
        assert isinstance(reported, dict)
    loads = LoadListener(lambda: 0.0, lambda: None)
    loads.datagram_received(raw, None)
    assert loads.invalid in (0, 1)


TARGETS = (
    Target(
        "http2",
        feed_http2,
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x00\x00\x04\x08",
            b"\x00\x00\x00\x04",
            b"\x82\x84\x86",
            b"\x3f\xe1\x1f",
        ),
    ),
    Target("extproc", feed_extproc, (b"\x22", b"\x2a", b"\x0a", b"\x10\x01", b"\xff\xff\xff\xff\x0f")),
    Target(
        "record", feed_record, (b'"v":1', b'"pods":[', b'"facts":{', b'"ttl_s":', b'"url":"http://', b"null", b"1e9")
    ),
    Target(
        "kubernetes", feed_kubernetes, (b'"metadata":{', b'"status":{', b'"podIP":"', b'"labels":{', b"null", b"[{")
    ),
    Target("ladder", feed_calibration, (b'"cuts": [', b'"threshold": ', b"NaN", b"1e999", b"null", b"[[")),
    Target("agent", feed_agent, (b'"0":{', b'"data":[', b'"vllm_config":{', b"vllm:cache_config_info{", b'engine="')),
)
