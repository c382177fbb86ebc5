"""The listener of KEDA's external scaler."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

from gateway.config.supply import SupplyConfig
from gateway.ext_proc.http2.frames import Http2Limits
from gateway.ext_proc.listener import GrpcListener, StreamCounter
from gateway.http.client_request import BodyBudget
from gateway.runtime.addresses import Address
from gateway.runtime.event_log import LogFunction
from gateway.runtime.ports import addresses_of, listen_error
from gateway.runtime.tls import reload_certificates, server_context
from gateway.scaling.external_scaler import ExternalScaler, ScalerBackend

MAX_MESSAGE_BYTES = 64 << 10
"""Of one call: a name and some keys."""

MAX_STREAMS = 256
"""Of one connection: KEDA has one connection per ScaledObject, with a stream and a call at a time."""

BACKLOG = 128


class ExternalScalerPort:
    """The listener. One per gateway, at its first worker."""

    def __init__(self, config: SupplyConfig, where: Address, backend: ScalerBackend, log_event: LogFunction) -> None:
        """Raises `InvalidDocument` for an invalid certificate."""
        self._config = config
        self._where = where
        self._log_event = log_event
        self._tls: ssl.SSLContext | None = server_context(config.tls, speaks="h2") if config.tls is not None else None
        self.scaler = ExternalScaler(backend)
        bounds = Http2Limits(max_streams=MAX_STREAMS, max_message_bytes=MAX_MESSAGE_BYTES, frame_s=10.0)
        self.port = GrpcListener(
            self.scaler.services(), BodyBudget(16 * MAX_MESSAGE_BYTES), StreamCounter(16 * MAX_STREAMS), bounds
        )

    async def run(self) -> None:
        """Listen until cancelled. Raises `CannotListen`."""
        async with AsyncExitStack() as stack:
            try:
                server = await self.port.listen(
                    tls=self._tls, host=self._where.host, port=self._where.port, backlog=BACKLOG
                )
            except OSError as error:
                raise listen_error("supply.listen", self._where, error) from None
            stack.callback(self.port.close)
            self._log_event("info", "external_scaler_listening", listen=addresses_of(server.sockets))
            if self._tls is None:
                await asyncio.get_running_loop().create_future()
            else:
                await reload_certificates(self._tls, lambda: self._config.tls, self._log_event)
