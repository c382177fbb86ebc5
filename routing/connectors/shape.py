"""The interface of a connector: which pods may pair, the parameters of each attempt, and what is validated between.

A connector is named as in vLLM's registry (`kv_connector`). Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from routing.facts import PodFacts

Params = Mapping[str, object]
"""A leg's `kv_transfer_params`, as JSON."""

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Port = Annotated[int, Meta(gt=0, lt=1 << 16)]
No = Literal[False]
Yes = Literal[True]

S = TypeVar("S", bound=Struct)


class TransferMode(StrEnum):
    """When the decode leg is sent."""

    SEQUENTIAL = "sequential"
    """When the prefill leg has been answered."""
    CONCURRENT = "concurrent"
    """With the prefill leg."""


class ConnectorCapabilities(Struct, frozen=True):
    """What a connector holds its pods, its pairs and the gateway to."""

    names: tuple[str, ...]
    """In vLLM's registry."""
    transfer_mode: TransferMode = TransferMode.SEQUENTIAL
    lease_s: float = 0.0
    """How long the prefill engine keeps blocks for the decode leg; 0 where it does not say, or keeps none."""
    is_pooled: bool = False
    """KV goes through a store that any peer may read, as often as it likes."""
    supports_both_roles: bool = False
    """An engine may prefill for one request and decode another's, so its role may change as it runs."""
    needs_engine_id: bool = False
    """The prefill engine's id has to be requested from its bootstrap server."""
    ends_by_length: bool = False
    """A prefill leg that ends by its first token being a stop hands over nothing."""


class TransferPeer(Struct, frozen=True):
    """One engine of a pair, as its peer sees it."""

    facts: PodFacts
    rank: int = 0
    engine_id: str = ""
    """As reported by its bootstrap server; empty where it was not requested."""


class KvTransferSession(Struct, frozen=True):
    """One request's hand-over: the two engines and the ids, made for this one attempt."""

    request_id: str
    """What both engines see in `X-Request-EntryId`."""
    key: str
    """32 random hexadecimal digits: a transfer cannot be claimed by guessing its name."""
    prefill: TransferPeer
    decode: TransferPeer
    cached_tokens: int | None = None
    """What the prefill engine held already, where its answer has come and said so."""


class InvalidTransferParams(Exception):  # noqa: N818 - names what was received
    """The parameters of a prefill response are not safe to send to the decode engine: they could crash it."""


class Connector(Protocol):
    """One way of handing over. Remembers nothing."""

    @property
    def terms(self) -> ConnectorCapabilities: ...

    def group(self, facts: PodFacts) -> Hashable | None:
        """What must be alike in two pods for them to pair, beyond what all pairs want; None for those that never do."""
        ...

    def may_prefill(self, facts: PodFacts) -> bool:
        """Whether such a pod can be a pair's prefill engine."""
        ...

    def may_decode(self, facts: PodFacts) -> bool:
        """Whether such a pod can be a pair's decode engine."""
        ...

    def ask(self, meeting: KvTransferSession) -> Params | None:
        """Return the `kv_transfer_params` of the prefill leg; None for none."""
        ...

    def hand(self, meeting: KvTransferSession, answered: object) -> Params | None:
        """Return the `kv_transfer_params` of the decode leg. `answered` is what the prefill leg's answer had as
        `kv_transfer_params`, None where that has not come or had none. Raises `InvalidTransferParams`.
        """
        ...


class PointToPointConnector:
    """What most connectors have in common: roles as the engine was started with."""

    __slots__ = ()

    def group(self, facts: PodFacts) -> Hashable | None:
        return (facts.tp, facts.pp)

    def may_prefill(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_consumer"

    def may_decode(self, facts: PodFacts) -> bool:
        return facts.kv_role != "kv_producer"


def validated(answered: object, kind: type[S]) -> S:
    """Parse a connector's parameters. Raises `InvalidTransferParams` where one is missing or invalid."""
    try:
        return msgspec.convert(answered, kind, strict=True)
    except (msgspec.ValidationError, TypeError) as fault:
        raise InvalidTransferParams(f"the prefill pod's kv_transfer_params cannot be passed on: {fault}") from None


def passed_through(answered: object) -> dict[str, object]:
    """Checked parameters as they came: a later engine's further words are for its peer to read."""
    assert isinstance(answered, dict)  # noqa: S101 - `checked` has seen to it
    return answered


def parse_host_port(address: str | None) -> tuple[str, int]:
    """Host and port of an address among a pod's facts. Raises `InvalidTransferParams` where it is unknown."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidTransferParams("the pod's facts do not tell the address that its peer needs")
    return host, int(port)
