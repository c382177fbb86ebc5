"""What the pods of a canary change, by how their servers were started: the options of `vllm serve` that differ.

A canary of configuration changes one scheduler parameter, or one precision, so that a verdict has one cause. Lower
precision of KV or weights is recognized here; `verdict.py` then wants a comparison of answers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from routing.kv_bytes import bits_per_number

KV_PRECISION, WEIGHT_PRECISION, DTYPE = "kv-cache-dtype", "quantization", "dtype"

PRECISION_OPTIONS = frozenset((KV_PRECISION, WEIGHT_PRECISION, DTYPE, "mamba-cache-dtype", "mamba-ssm-cache-dtype"))
"""Options by which KV, state or weights take fewer bits."""

SCHEDULER_PARAMETERS = frozenset(
    (
        *("max-num-batched-tokens", "max-num-scheduled-tokens", "max-num-seqs", "max-num-active-seqs"),
        *("max-num-queued-reqs", "max-num-queued-tokens", "long-prefill-token-threshold"),
        *("long-prefill-token-threshold-adaptive", "prefill-schedule-interval", "scheduling-policy"),
        *("enable-chunked-prefill", "async-scheduling", "scheduler-reserve-full-isl", "stream-interval", "watermark"),
    )
)
"""Options of the engine's scheduler."""

IGNORED_OPTIONS = frozenset(("has-config-file",))
"""They say how options were given."""

FULL_BITS = 16.0
"""Bits of a number where an option is not given, or `auto`."""

WEIGHT_BITS: Mapping[str, float] = {
    **dict.fromkeys(("fp8", "int8", "w8a8", "ptpc_fp8", "fbgemm_fp8", "mxfp8", "modelopt"), 8.0),
    **dict.fromkeys(("fp4", "nvfp4", "mxfp4", "modelopt_fp4", "petit_nvfp4", "awq", "gptq", "bitsandbytes"), 4.0),
}
"""By `--quantization`; a method that is not listed counts as lower than any other."""


class CanaryKind(StrEnum):
    """What a canary tries."""

    RELEASE = "release"
    """Another build, model or hardware, with whatever options it needs."""
    CONFIGURATION = "configuration"
    """The same build with one option changed."""


class ChangeFault(StrEnum):
    """Why pods may not be on trial for what they change. The value is what an operator reads."""

    MANY_OPTIONS = "many_options"
    OTHER_OPTION = "other_option"
    NO_OPTION = "no_option"
    OPTIONS_UNKNOWN = "options_unknown"


class StartedServer(Struct, frozen=True):
    """How a pod's server was started, as far as it is known."""

    options: Mapping[str, str]
    """By the names of `vllm serve`, without dashes; of options that were not given, the default where it is fixed."""
    is_complete: bool
    """Whether an option that is missing was not given; else `options` are some of several."""
    build: Mapping[str, str] = {}
    """Version, image and model, as far as known."""


class OptionChange(Struct, frozen=True):
    """An option that a canary changes; None where it is not given."""

    name: str
    standing: tuple[str | None, ...]
    canary: tuple[str | None, ...]

    def __str__(self) -> str:
        """Return the option with both values, as an operator would write them."""
        return f"--{self.name} ({_shown(self.standing)} -> {_shown(self.canary)})"


def option_changes(standing: Sequence[StartedServer], canary: Sequence[StartedServer]) -> tuple[OptionChange, ...]:
    """Return the options of which a pod on trial has a value that no standing pod has, by name.

    An option counts where it is known of all pods on both sides.
    """
    names = sorted({name for server in (*standing, *canary) for name in server.options} - IGNORED_OPTIONS)
    found = []
    for name in names:
        if not standing or not canary or not all(_is_known(server, name) for server in (*standing, *canary)):
            continue
        before, after = _values(standing, name), _values(canary, name)
        if not set(after) <= set(before):
            found.append(OptionChange(name, before, after))
    return tuple(found)


def change_fault(
    kind: CanaryKind | None, standing: Sequence[StartedServer], canary: Sequence[StartedServer]
) -> ChangeFault | None:
    """Return why these pods may not be on trial beside those that stand; None where they may.

    `kind` None: a canary of configuration where options of all pods are known and no build differs, else of a release.
    """
    is_known = bool(standing and canary) and all(server.is_complete for server in (*standing, *canary))
    if kind is CanaryKind.RELEASE or (kind is None and not (is_known and is_same_build(standing, canary))):
        return None
    if not is_known:
        return ChangeFault.OPTIONS_UNKNOWN
    changes = option_changes(standing, canary)
    if len(changes) > 1:
        return ChangeFault.MANY_OPTIONS
    if not changes:
        return ChangeFault.NO_OPTION if kind is CanaryKind.CONFIGURATION else None
    return None if changes[0].name in SCHEDULER_PARAMETERS | PRECISION_OPTIONS else ChangeFault.OTHER_OPTION


def is_same_build(standing: Sequence[StartedServer], canary: Sequence[StartedServer]) -> bool:
    """Return whether nothing that is known of version, image and model differs."""
    names = {name for server in (*standing, *canary) for name in server.build}
    for name in names:
        before = {server.build[name] for server in standing if name in server.build}
        after = {server.build[name] for server in canary if name in server.build}
        if before and not after <= before:
            return False
    return True


def lowered_precision(changes: Iterable[OptionChange]) -> tuple[OptionChange, ...]:
    """Return the changes by which KV, state or weights may take fewer bits than on any standing pod."""
    return tuple(change for change in changes if change.name in PRECISION_OPTIONS and _is_lower(change))


def _is_lower(change: OptionChange) -> bool:
    return min(_bits(change.name, value) for value in change.canary) < min(
        _bits(change.name, value) for value in change.standing
    )


def _bits(name: str, value: str | None) -> float:
    """Return the bits of a number; 0 where a value is not known, so that its quality has to be compared."""
    if value is None or value in ("auto", "none"):
        return FULL_BITS
    if name == WEIGHT_PRECISION:
        known = [prefix for prefix in WEIGHT_BITS if value.startswith(prefix)]
        return WEIGHT_BITS[max(known, key=len)] if known else 0.0
    return bits_per_number(value) or 0.0


def _is_known(server: StartedServer, name: str) -> bool:
    return server.is_complete or name in server.options


def _values(servers: Sequence[StartedServer], name: str) -> tuple[str | None, ...]:
    return tuple(
        sorted({server.options.get(name) for server in servers}, key=lambda value: (value is None, value or ""))
    )


def _shown(values: tuple[str | None, ...]) -> str:
    return ", ".join("not given" if value is None else value for value in values)
