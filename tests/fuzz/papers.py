"""Targets that operators write: the policy and the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from gateway.config.settings import read_settings
from tenancy.document import ConfigError, InvalidDocument
from tenancy.policy import InlineFiles, KeyFile
from tenancy.reading.policy import read_policy
from tests.fuzz.target import Target

NAMED = {"HERE": "x"}


def feed_policy(raw: bytes) -> None:
    """A policy: read, or refused with its faults, each of which says where."""
    with contextlib.suppress(UnicodeDecodeError):
        faults_of(lambda source: read_policy(source, NAMED, InlineFiles(KeyFile("a", "k", "0" * 64))), raw)


def feed_settings(raw: bytes) -> None:
    """The configuration, in the same way."""
    with contextlib.suppress(UnicodeDecodeError):
        faults_of(lambda source: read_settings(source, NAMED), raw)


def faults_of(read: Callable[[str], object], raw: bytes) -> None:
    faults: Sequence[ConfigError] | None = None
    source = raw.decode()
    try:
        read(source)
    except InvalidDocument as invalid:
        faults = invalid.errors
    assert faults is None or all(fault.message for fault in faults)


WORDS = (b": ", b"\n  ", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"!!", b"<<: *a", b"1e9", b"0x", b"${HERE}")

TARGETS = (
    Target("policy", feed_policy, (*WORDS, b"tenants:", b"tiers:", b"auth:", b"keys:", b"defaults:")),
    Target("settings", feed_settings, (*WORDS, b"model_list:", b"discovery:", b"limits:", b"listen:")),
)
