"""A provider's response on its way to the relay: its errors in our terms, its answer in the client's format.

Nothing that a provider says is logged: its messages may quote the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.pipeline.attempt import AttemptStatus
from gateway.providers.translation import AnswerTranslator, Untranslatable
from gateway.relay.fast_path import ParsingConnection, PassthroughStream
from gateway.relay.pod_errors import read_error
from gateway.relay.relay import MAX_ERROR_BYTES, Relay
from gateway.relay.upstream_connection import ResponseBodyHandler, ResponseHead, ResponseReceiver

BUSY_STATUSES = frozenset({429, 503, 529})
"""529 is Anthropic's for overload."""

KEY_STATUSES = frozenset({401, 402})
"""Key or account are rejected: nothing that a client sends can help."""

OPERATOR_STATUSES = frozenset({403, 404, 405})
"""Rights, model or path are wrong, or what the request names: one tenant's requests must not hold all others' back."""

CLIENT_STATUSES = frozenset({400, 413, 422})
"""The provider rejects the request itself."""


class ProviderExchange:
    """One request at an endpoint, between its connection and the relay of the attempt."""

    def __init__(
        self,
        relay: Relay,
        translator: AnswerTranslator | None,
        name: str,
        *,
        note_busy: Callable[[float | None], object],
        note_rejected: Callable[[int], object],
    ) -> None:
        """`translator`: None where the endpoint's API is the client's. `name`: of the endpoint, for messages."""
        self.relay = relay
        self._translator = translator
        self.name = name
        self.note_busy = note_busy
        self.note_rejected = note_rejected
        self.was_stale = False
        self.status = 0

    @property
    def ended(self) -> asyncio.Future[None]:
        return self.relay.ended

    @property
    def reply(self) -> ResponseReceiver:
        return self.relay.reply

    @property
    def has_started(self) -> bool:
        return self.relay.has_started

    def finish_if_delivered(self) -> bool:
        return self.relay.finish_if_delivered()

    def fail(self, end: AttemptStatus, detail: str) -> None:
        self.relay.fail(end, detail.replace("pod", f"provider endpoint {self.name}"))

    def end_by_time(self) -> None:
        """End it: the response has not ended in the time that it may take."""
        detail = f"The response of the provider endpoint {self.name} did not end within its response_timeout_s."
        self.relay.discard(AttemptStatus.TIMEOUT, detail)

    def open_response(self, head: ResponseHead) -> ResponseBodyHandler | None:
        """Return the handler of the body that this head announces; None if it cannot be passed on."""
        self.status = self.relay.status = head.status
        if head.status >= 400:
            return ProviderErrorBody(self, head)
        translator = self._translator
        if translator is None or head.status >= 300 or head.is_encoded:
            return self.relay.open_response(head)
        handler = self.relay.open_response(ResponseHead(head.status, translator.content_type, None))
        return None if handler is None else TranslatedBody(self, translator, handler)


class ProviderErrorBody:
    """Handles an endpoint's error response by its status."""

    def __init__(self, exchange: ProviderExchange, head: ResponseHead) -> None:
        self._exchange = exchange
        self._head = head
        self._body = b""

    def take(self, payload: bytes) -> None:
        """Keep these bytes, as far as a message may need them."""
        self._body += payload[: MAX_ERROR_BYTES - len(self._body)]

    def fast_path(self, line: ParsingConnection) -> PassthroughStream | None:
        """Return None: the error is read first."""
        return None

    def end(self) -> None:
        """End the attempt by what the error is about."""
        exchange, status = self._exchange, self._head.status
        relay, name = exchange.relay, exchange.name
        if status in BUSY_STATUSES:
            exchange.note_busy(seconds_of(self._head.retry_after))
            relay.fail(AttemptStatus.UPSTREAM_BUSY, f"The provider endpoint {name} is busy (status {status}).")
        elif status in KEY_STATUSES | OPERATOR_STATUSES:
            if status in KEY_STATUSES:
                exchange.note_rejected(status)
            words = f"The provider endpoint {name} rejected the gateway's key, account or path (status {status}); check"
            relay.fail(AttemptStatus.UPSTREAM_5XX, f"{words} its api_key, base_url and models.")
        elif status in CLIENT_STATUSES:
            relay.send_error(read_error(status, self._body))
            relay.succeed()
        else:
            relay.fail(AttemptStatus.UPSTREAM_5XX, f"The provider endpoint {name} answered {status}.")


class TranslatedBody:
    """Handles a body in the endpoint's format: the relay's handler gets it in the client's."""

    def __init__(self, exchange: ProviderExchange, translator: AnswerTranslator, handler: ResponseBodyHandler) -> None:
        self._exchange = exchange
        self._translator = translator
        self._handler = handler

    def take(self, payload: bytes) -> None:
        """Pass on the translation of what is complete with these bytes."""
        if not self._exchange.ended.done():
            self._pass_on(lambda: self._translator.feed(payload))

    def fast_path(self, line: ParsingConnection) -> PassthroughStream | None:
        """Return None: every event is translated."""
        return None

    def end(self) -> None:
        """Pass on what is left, and end the response."""
        if self._exchange.ended.done():
            return
        if self._pass_on(self._translator.finish):
            self._handler.end()

    def _pass_on(self, translated: Callable[[], bytes]) -> bool:
        relay = self._exchange.relay
        try:
            out = translated()
        except Untranslatable as why:
            relay.discard(AttemptStatus.INVALID_RESPONSE, f"{self._exchange.name}: {why}.")
            return False
        except Exception as error:  # noqa: BLE001 - the attempt must end, whatever a provider sends
            words = f"{self._exchange.name}: its answer cannot be translated ({type(error).__name__})."
            relay.discard(AttemptStatus.INVALID_RESPONSE, words)
            return False
        if out:
            self._handler.take(out)
        return not relay.ended.done()


def seconds_of(retry_after: str) -> float | None:
    """Return the seconds of a `Retry-After` header; None without one, or for a date."""
    try:
        found = float(retry_after)
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None
