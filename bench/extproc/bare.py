"""A minimal picker in Python: grpc.aio on uvloop, pods in turn, nothing read, no tenants.

Answers each message as the mode of its stream requires, and no more. It is the floor for pickers built on grpc.aio.

    .venv-grpc/bin/python -m bench.extproc.bare HOST:PORT ...     prints its own address, serves until it is ended
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import uvloop

from gateway.ext_proc import messages_pb2 as wire

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
PIECE_BYTES = 62_000
FULL_DUPLEX = 4
UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Picker:
    """Pods in turn."""

    def __init__(self, pods: list[str]) -> None:
        self._pods = itertools.cycle(pods)

    async def stream(self, messages: AsyncIterator[Any], _: object) -> AsyncIterator[Any]:
        """One HTTP request."""
        pieces: list[bytes] = []
        mode = None
        async for message in messages:
            mode = mode or message.protocol_config
            if message.observability_mode:
                continue
            match message.WhichOneof("request"):
                case "request_headers":
                    if mode.request_body_mode != FULL_DUPLEX:
                        yield self.first(message, mode)
                case "request_body":
                    for answer in self.body(message.request_body, mode, pieces):
                        yield answer
                case "response_headers":
                    yield wire.ProcessingResponse(response_headers=wire.HeadersResponse())
                case "response_body":
                    got = message.response_body
                    yield wire.ProcessingResponse(response_body=piece_of(got.body, is_last=got.end_of_stream))

    def first(self, message: Any, mode: Any) -> Any:
        """What headers are answered with: a pod where no body will come, else to go on."""
        if message.request_headers.end_of_stream or not mode.request_body_mode:
            return self.picked("request_headers")
        return wire.ProcessingResponse(request_headers=wire.HeadersResponse())

    def body(self, got: Any, mode: Any, pieces: list[bytes]) -> Iterator[Any]:
        """What a body is answered with, or nothing yet while more of it will come."""
        if mode.request_body_mode != FULL_DUPLEX:
            yield self.picked("request_body")
            return
        pieces.append(got.body)
        if got.end_of_stream:
            yield self.picked("request_headers")
            yield from (wire.ProcessingResponse(request_body=piece) for piece in streamed(b"".join(pieces)))

    def picked(self, phase: str) -> Any:
        """The answer that names a pod, by header and by metadata."""
        pod = next(self._pods)
        answer = wire.ProcessingResponse()
        common = getattr(answer, phase).response
        option = common.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = DESTINATION, pod.encode()
        common.clear_route_cache = True
        answer.dynamic_metadata.update({"envoy.lb": {DESTINATION: pod}})
        return answer


def streamed(body: bytes) -> list[Any]:
    """A body in pieces, as full duplex wants it back."""
    ends = range(0, max(1, len(body)), PIECE_BYTES)
    return [piece_of(body[at : at + PIECE_BYTES], is_last=at + PIECE_BYTES >= len(body)) for at in ends]


def piece_of(body: bytes, *, is_last: bool) -> Any:
    piece = wire.BodyResponse()
    piece.response.body_mutation.streamed_response.body = body
    piece.response.body_mutation.streamed_response.end_of_stream = is_last
    return piece


async def serve(pods: list[str]) -> None:
    server = grpc.aio.server(options=UNBOUNDED)
    handler = grpc.stream_stream_rpc_method_handler(
        Picker(pods).stream,
        request_deserializer=wire.ProcessingRequest.FromString,
        response_serializer=wire.ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1:]))
