"""The seam between a pod and its KV connector: parameters in, an errand out; an end in, parameters out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.transfer.kv_transfer import KvTransfer
from simulator.transfer.wiring import KvRole


@dataclass(frozen=True, slots=True)
class PodAddress:
    """Who a pod is to other pods, once it listens."""

    engine_id: str
    role: KvRole
    host: str
    side_port: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Subject:
    """One sequence, as a connector knows it; `blocks` are those of its prompt that are full."""

    sequence_id: str
    prompt_tokens: int
    blocks: tuple[int, ...]


class Connector(Protocol):
    """One pod's way of sharing KV."""

    def read(self, params: Mapping[str, Any], subject: Subject) -> KvTransfer:
        """What a request's `kv_transfer_params` mean. Raises `RuleBroken` where the engine would not survive them."""
        ...

    def returned(self, kv_transfer: KvTransfer, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """The answer's `kv_transfer_params`."""
        ...
