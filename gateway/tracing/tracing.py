"""The traces of one gateway: tracer and exporter, built from the configuration, and their lifetime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.config.tracing import TracingConfig, read_headers
from gateway.runtime.event_log import LogFunction
from gateway.tracing.exporter import SpanExporter
from gateway.tracing.otlp import Envelope, encode_spans, rejected_spans, resource_attributes
from gateway.tracing.sender import OtlpSender
from gateway.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Tracing:
    """Begins traces and exports them."""

    tracer: Tracer
    exporter: SpanExporter
    flush_s: float
    log_event: LogFunction

    async def run(self) -> None:
        """Export until cancelled, then what is queued, for `flush_s` at most."""
        self.exporter.start()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            lost = await asyncio.to_thread(self.exporter.close, self.flush_s)
            if lost:
                self.log_event("warning", "trace_export_failed", error="the gateway has ended", dropped=lost)


def make_tracing(config: TracingConfig, random_bits: Callable[[int], int], log_event: LogFunction) -> Tracing:
    """Build tracer and exporter; nothing is opened or started yet."""
    headers_file = config.headers_file
    sender = OtlpSender(
        config.endpoint, (lambda: read_headers(headers_file)) if headers_file else dict[str, str], rejected_spans
    )
    exporter = SpanExporter(
        encode=encode_spans,
        wrap=Envelope(resource_attributes(config.service_name)).wrap,
        sender=sender,
        timeout_s=config.timeout_s,
        log_event=log_event,
    )
    tracer = Tracer(
        sample_ratio=config.sample_ratio,
        accept_parent=config.accept_parent,
        random_bits=random_bits,
        export=exporter.export,
    )
    return Tracing(tracer, exporter, config.flush_s, log_event)
