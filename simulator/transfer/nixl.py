"""NixlConnector on the wire: sequential, the prefilling pod's answer names its blocks, the decoding pod pulls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.transfer.connector import PodAddress, Subject
from simulator.transfer.kv_transfer import NOTHING, KvTransfer, Wire

NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


class Nixl:
    """Pull, as vLLM 0.32 does it by default."""

    def __init__(self, address: PodAddress) -> None:
        self._address = address

    def read(self, params: Mapping[str, Any], subject: Subject) -> KvTransfer:
        """What the parameters of a request mean."""
        if params.get("do_remote_decode"):
            return KvTransfer(held_as=subject.sequence_id)
        if not params.get("do_remote_prefill"):
            return NOTHING
        if any(params.get(name) is None for name in NEEDED):
            return KvTransfer(remote_tokens=subject.prompt_tokens, is_poisoned=True)
        wire = Wire(str(params["remote_host"]), int(params["remote_port"]), str(params["remote_request_id"]))
        reported = params.get("remote_prefill_cached_tokens")
        tokens = min(int(params.get("remote_num_tokens") or subject.prompt_tokens), subject.prompt_tokens)
        return KvTransfer(
            remote_tokens=tokens, source=wire, reported_cached_tokens=None if reported is None else int(reported)
        )

    def returned(self, kv_transfer: KvTransfer, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """Return what the response carries for the decoding pod."""
        if kv_transfer.held_as is None:
            return None
        blocks = -(-subject.prompt_tokens // self._address.block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self._address.engine_id,
            "remote_request_id": subject.sequence_id,
            "remote_host": self._address.host,
            "remote_port": self._address.side_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": subject.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        }
