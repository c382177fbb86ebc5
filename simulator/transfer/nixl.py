"""NixlConnector on the wire: sequential, the prefilling pod's answer names its blocks, the decoding pod pulls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.transfer.connector import Place, Subject
from simulator.transfer.errand import NOTHING, Errand, Wire

NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_block_ids")


class Nixl:
    """Pull, as vLLM 0.32 does it by default."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def read(self, params: Mapping[str, Any], subject: Subject) -> Errand:
        """What the parameters of a request mean."""
        if params.get("do_remote_decode"):
            return Errand(held_as=subject.sequence_id)
        if not params.get("do_remote_prefill"):
            return NOTHING
        if any(params.get(name) is None for name in NEEDED):
            return Errand(remote_tokens=subject.prompt_tokens, is_poisoned=True)
        wire = Wire(str(params["remote_host"]), int(params["remote_port"]), str(params["remote_request_id"]))
        told = params.get("remote_prefill_cached_tokens")
        tokens = min(int(params.get("remote_num_tokens") or subject.prompt_tokens), subject.prompt_tokens)
        return Errand(remote_tokens=tokens, source=wire, told_cached_tokens=None if told is None else int(told))

    def returned(self, errand: Errand, subject: Subject, cached_tokens: int) -> dict[str, Any] | None:
        """What the answer carries for whoever decodes."""
        if errand.held_as is None:
            return None
        blocks = -(-subject.prompt_tokens // self._place.block_size)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self._place.engine_id,
            "remote_request_id": subject.sequence_id,
            "remote_host": self._place.host,
            "remote_port": self._place.side_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": subject.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        }
