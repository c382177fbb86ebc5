"""What pods on trial change by their options, and what a canary of configuration may change."""

from __future__ import annotations

import pytest

from routing.canary.change import (
    CanaryKind,
    ChangeFault,
    OptionChange,
    StartedServer,
    change_fault,
    lowered_precision,
    option_changes,
)

BUILD = {"version": "0.32.0"}
OPTIONS = {"max-num-seqs": "128", "max-num-batched-tokens": "8192"}


def server(build: dict[str, str] = BUILD, *, is_complete: bool = True, **options: str) -> StartedServer:
    """A server with the usual options and these; underscores stand for dashes."""
    given = {name.replace("_", "-"): value for name, value in options.items()}
    return StartedServer(OPTIONS | given, is_complete, build)


STANDING = (server(), server())


@pytest.mark.parametrize(
    ("canary", "kind", "fault"),
    [
        (server(max_num_seqs="256"), None, None),
        (server(kv_cache_dtype="nvfp4"), None, None),
        (server(max_num_seqs="256", max_num_batched_tokens="4096"), None, ChangeFault.MANY_OPTIONS),
        (server(max_num_seqs="256", kv_cache_dtype="fp8"), CanaryKind.CONFIGURATION, ChangeFault.MANY_OPTIONS),
        (server(max_num_seqs="256", max_num_batched_tokens="4096"), CanaryKind.RELEASE, None),
        (server(tensor_parallel_size="2"), None, ChangeFault.OTHER_OPTION),
        (server(), CanaryKind.CONFIGURATION, ChangeFault.NO_OPTION),
        (server(), None, None),
        (server({"version": "0.33.0"}, max_num_seqs="256", max_num_batched_tokens="4096"), None, None),
        (server(max_num_seqs="256", is_complete=False), CanaryKind.CONFIGURATION, ChangeFault.OPTIONS_UNKNOWN),
        (server(max_num_seqs="256", is_complete=False), None, None),
    ],
)
def test_a_canary_of_configuration_changes_one_parameter(
    canary: StartedServer, kind: CanaryKind | None, fault: ChangeFault | None
) -> None:
    """Also where its kind follows from builds; another build brings the options that it needs."""
    assert change_fault(kind, STANDING, (canary,)) == fault


def test_changes_name_both_values() -> None:
    """As an operator would write them; an option that one side was not given is a change."""
    changes = option_changes(STANDING, (server(max_num_seqs="256", scheduling_policy="priority"),))
    assert [str(change) for change in changes] == [
        "--max-num-seqs (128 -> 256)",
        "--scheduling-policy (not given -> priority)",
    ]


def test_standing_pods_may_differ_among_themselves() -> None:
    """A value that one of them has is no change; one that only some pods on trial have is."""
    mixed = (server(), server(max_num_seqs="256"))
    assert option_changes(mixed, (server(max_num_seqs="256"),)) == ()
    assert [change.name for change in option_changes(mixed, (server(), server(max_num_seqs="512")))] == ["max-num-seqs"]


def test_an_option_that_is_not_known_of_all_is_no_change() -> None:
    """What only one side reports says nothing."""
    known = server(is_complete=False, block_size="32")
    assert option_changes((server(is_complete=False),), (known,)) == ()
    other = server(is_complete=False, block_size="16")
    assert option_changes((other,), (known,)) == (OptionChange("block-size", ("16",), ("32",)),)


@pytest.mark.parametrize(
    ("name", "standing", "canary", "is_lower"),
    [
        ("kv-cache-dtype", None, "fp8", True),
        ("kv-cache-dtype", "fp8_e4m3", "nvfp4", True),
        ("kv-cache-dtype", "fp8", "fp8_e5m2", False),
        ("kv-cache-dtype", "nvfp4", "auto", False),
        ("kv-cache-dtype", "auto", "unheard_of", True),
        ("quantization", None, "modelopt_fp4", True),
        ("quantization", "awq", "fp8", False),
        ("quantization", "fp8", "unheard_of", True),
        ("dtype", "float32", "bfloat16", True),
        ("dtype", "auto", "bfloat16", False),
        ("max-num-seqs", "128", "64", False),
    ],
)
def test_lower_precision_is_recognized(name: str, standing: str | None, canary: str, is_lower: bool) -> None:
    """Of KV and of weights; what is not known counts as lower."""
    change = OptionChange(name, (standing,), (canary,))
    assert lowered_precision([change]) == ((change,) if is_lower else ())
