"""Facts of a pod beyond its URL: role, KV connector, hardware and place.

Everything is optional; the default of each fact is "unknown". The field names are the keys under which pod file,
configuration, labels and registry give them, as one flat mapping. Independent of the source. The only conclusion
here is the effective role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=StrEnum)

_IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}(?![0-9a-f])")

MAX_TEXT_CHARS = 512
"""Characters: a longer text is neither a name nor an address."""

MAX_TEXTS = 256

MAX_COUNT = 1 << 53
"""What every JSON reader keeps exact."""


class Role(StrEnum):
    """What an engine may do."""

    EITHER = "either"
    PREFILL = "prefill"
    DECODE = "decode"


class PromptLengths(StrEnum):
    """For which prompts a pod was put up."""

    ANY = "any"
    LONG = "long"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """All facts of one pod. Engines of a data-parallel pod have them in common."""

    role: Role | None = None
    """`prefill`, `decode` or `either`, as configured or reported; `kv_role` decides where it is absent."""
    models: tuple[str, ...] = ()
    """Models that it serves, where it cannot report them."""
    revision: str | None = None
    """Revision of the rollout; pods of two revisions may not hold the same weights."""
    version: str | None = None
    """Version of the engine, as its `/version` reports it."""
    image_digest: str | None = None
    """Digest of its container image: `sha256:` and hex digits."""
    engine_id: str | None = None
    """ID by which a connector's peers know it; that of rank 0, where each data-parallel rank has one."""
    kv_connector: str | None = None
    """KV connector, as vLLM's registry spells it: `NixlConnector`, `MooncakeConnector`."""
    kv_role: str | None = None
    """Role in KV transfers: `kv_producer`, `kv_consumer` or `kv_both`."""
    side_channel: str | None = None
    """Address of NIXL's handshake, `HOST:PORT` of rank 0."""
    bootstrap: str | None = None
    """Address of Mooncake's bootstrap server, `HOST:PORT`."""
    kv_dtype: str | None = None
    """Type of its KV cache, as in vLLM's `--kv-cache-dtype`."""
    kv_layout: str | None = None
    """Layout of its KV cache: `HND` or `NHD`."""
    kv_bytes_per_token: int | None = None
    """Bytes of KV that a token takes in the caches of all ranks together."""
    block_size: int | None = None
    """Tokens in a KV block."""
    tp: int | None = None
    """Tensor-parallel size."""
    pp: int | None = None
    """Pipeline-parallel size."""
    dp: int | None = None
    """Data-parallel size: engines of the pod."""
    ep: bool | None = None
    """Whether it is expert parallel: its data-parallel ranks step together, idle ones included."""
    dp_group: str | None = None
    """Name that its ranks share with those of other pods: `HOST:PORT` of their coordinator."""
    kv_events: str | None = None
    """ZMQ endpoint of its KV events."""
    gpu: str | None = None
    """Model of its GPUs, which are all alike; `none` for a pod without GPUs."""
    gpus: int | None = None
    """Number of its GPUs."""
    gpu_memory_bytes: int | None = None
    """Memory of one GPU."""
    gpu_bandwidth_gb_s: int | None = None
    """Bandwidth between one GPU and its memory, 10^9 bytes a second."""
    nvlink_gb_s: int | None = None
    """Bandwidth out of one GPU over all its NVLinks, 10^9 bytes a second."""
    nics: tuple[str, ...] = ()
    """RDMA devices, as the kernel names them."""
    nic_gbit_s: int | None = None
    """Bandwidth of all RDMA devices together, 10^9 bits a second."""
    host: str | None = None
    """Name of its node: the nearest domain of KV transfers."""
    rack: str | None = None
    """Rack of its node."""
    zone: str | None = None
    """Zone of its node."""
    region: str | None = None
    """Region, as `allowed_regions` of tenants names it."""
    prompts: PromptLengths = PromptLengths.ANY
    """Prompts that it is meant for: `any`, `long` or `short`."""
    spill_rank: int | None = None
    """Pods of lower ranks are used first; absent counts as 0."""

    @property
    def effective_role(self) -> Role:
        """What the pod may do: as said, or as its connector's role has it, or either."""
        return self.role or _DUTIES.get(self.kv_role or "", Role.EITHER)

    def to_mapping(self) -> dict[str, object]:
        """The flat mapping that `read_facts` reads: what is known, in plain texts, whole numbers and lists."""
        held = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return {key: _plain(value) for key, value, default in held if value != default}


NO_FACTS = PodFacts()
"""Of a pod without known facts."""

_DUTIES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


class InvalidFacts(ValueError):  # noqa: N818 - it carries a verdict on the input
    """What is wrong with facts; one line per word, beginning with it."""

    def __init__(self, faults: Collection[str]) -> None:
        super().__init__("; ".join(faults))
        self.errors = tuple(faults)


def read_facts(given: Mapping[str, object]) -> PodFacts:
    """Facts from a flat mapping; numbers may be texts and lists may be one text with commas, as labels want it.

    A key whose value is None or empty counts as missing. Raises `InvalidFacts` with all faults, unknown keys included:
    a reader of records that a later version may have written keeps to `FACT_NAMES` first.
    """
    faults = [f"{key}: is not a fact of a pod" for key in given if key not in FACT_NAMES]
    known: dict[str, Any] = {}
    for key, value in given.items():
        if key not in FACT_NAMES or value is None or value in ("", []):
            continue
        try:
            known[key] = _READERS.get(key, _text)(value)
        except ValueError as error:
            faults.append(f"{key}: {error}")
    if faults:
        raise InvalidFacts(faults)
    return PodFacts(**known)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value.value if isinstance(value, StrEnum) else value


def _text(value: object) -> str:
    content = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(content, str):
        raise ValueError("must be a text")  # noqa: TRY004 - a verdict on the input, as all here
    content = content.strip()
    if not content or len(content) > MAX_TEXT_CHARS or not content.isprintable():
        raise ValueError(f"must be one line of at most {MAX_TEXT_CHARS} characters")
    return content


def _texts(value: object) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) > MAX_TEXTS:
        raise ValueError(f"must be a list of at most {MAX_TEXTS} texts")
    return tuple(map(_text, parts))


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError("must be a whole number")
    return value


def _positive(value: object) -> int:
    if (count := _count(value)) == 0:
        raise ValueError("must be above zero")
    return count


def _flag(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _address(value: object) -> str:
    content = _text(value)
    host, colon, port = content.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16:
        raise ValueError(f"must be HOST:PORT, not `{content}`")
    return content


def _image_digest(value: object) -> str:
    """Also an image's name with its digest, of which the digest is kept."""
    found = _IMAGE_DIGEST.search(_text(value))
    if found is None:
        raise ValueError("must be a digest: sha256: and 64 hex digits")
    return found[0]


def _role(value: object) -> Role:
    """Also llm-d's name for a pod that does both."""
    if value in ("prefill-decode", "both"):
        return Role.EITHER
    return _one_of(Role)(value)


def _one_of(kind: type[E]) -> Callable[[object], E]:
    def read(value: object) -> E:
        try:
            return kind(str(value))
        except ValueError:
            raise ValueError(f"must be one of {', '.join(kind)}") from None

    return read


class _KvRole(StrEnum):
    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"


_READERS: Mapping[str, Callable[[object], Any]] = {
    "role": _role,
    "ep": _flag,
    "image_digest": _image_digest,
    "prompts": _one_of(PromptLengths),
    "kv_role": lambda value: _one_of(_KvRole)(value).value,
    **dict.fromkeys(("models", "nics"), _texts),
    **dict.fromkeys(("side_channel", "bootstrap"), _address),
    **dict.fromkeys(("block_size", "kv_bytes_per_token", "tp", "pp", "dp"), _positive),
    **dict.fromkeys(
        ("gpus", "gpu_memory_bytes", "gpu_bandwidth_gb_s", "nvlink_gb_s", "nic_gbit_s", "spill_rank"), _count
    ),
}
"""Every other word is a text."""

FACT_NAMES = frozenset(field.name for field in fields(PodFacts))
