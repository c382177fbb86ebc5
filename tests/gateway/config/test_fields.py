"""Addresses, URLs, networks and secrets are taken or refused with what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.fields import (
    Secret,
    address,
    address_or_off,
    file,
    network,
    place,
    pod_url,
    processes,
    redis_url,
    secret,
    secret_file,
)
from gateway.runtime.addresses import Address
from tenancy.document import Wrong


@pytest.mark.parametrize(
    ("words", "where", "shown"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000), "127.0.0.1:8000"),
        ("[::1]:0", Address("::1", 0), "[::1]:0"),
        ("gateway.example:65535", Address("gateway.example", 65535), "gateway.example:65535"),
    ],
)
def test_addresses(words: str, where: Address, shown: str) -> None:
    """Read and shown alike."""
    assert address(words) == where
    assert str(where) == shown


def test_loopback_is_known() -> None:
    """By number or by name; everything else can be reached from outside."""
    assert [Address(host, 1).is_loopback for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [False] * 5


def test_a_port_may_be_off() -> None:
    """`off`, which YAML reads as false."""
    assert address_or_off("off") is address_or_off(False) is None
    assert address_or_off("a:1") == Address("a", 1)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://pod:8000", "http://pod:8000"),
        ("http://pod:8000/", "http://pod:8000"),
        ("HTTP://Pod", "http://pod:80"),
        ("https://pod", "https://pod:443"),
        ("http://[::1]:8101", "http://[::1]:8101"),
    ],
)
def test_a_pod_has_one_name(given: str, url: str) -> None:
    """However it is written, it is one pod."""
    assert pod_url(given) == url


@pytest.mark.parametrize(
    ("parse", "value", "words"),
    [
        (address, "8000", "must be HOST:PORT"),
        (address, ":8000", "must be HOST:PORT"),
        (address, "a:b", "`b` is no port"),
        (address, "a:65536", "`65536` is no port"),
        (address, "a:-1", "`-1` is no port"),
        (address, "a:²", "is no port"),
        (address, "::1:80", "an IPv6 host stands in brackets: [::1]:80"),
        (address, 8000, "must be a text"),
        (pod_url, "pod:8000", "must be a URL beginning with http:// or https://"),
        (pod_url, "ftp://pod", "must be a URL beginning with"),
        (pod_url, "http://", "must be a URL beginning with"),
        (pod_url, "http://a b", "must be a URL beginning with"),
        (pod_url, "http://pod:99999", "is no URL"),
        (pod_url, "http://pod:0", "must be a URL beginning with"),
        (pod_url, "http://pod/v1", "without a path"),
        (pod_url, "http://pod?x=1", "without a path"),
        (pod_url, "http://me:pw@pod", "a pod's key belongs into pod_api_key"),
        (redis_url, "localhost:6379", "must be a URL beginning with redis://, rediss://, unix://"),
        (processes, 0, "must be from 1 to 256, not 0"),
        (processes, "257", "must be from 1 to 256, not 257"),
        (processes, 1.5, "must be a whole number"),
        (processes, "many", "must be a number"),
        (network, "10.0.0.0/33", "is no network"),
        (network, "10.0.0.1/8", "has host bits set"),
        (secret, "a\nb", "one line of printable ASCII"),
        (secret, "  ", "one line of printable ASCII"),
        (file, "/nowhere/at/all", "there is no file"),
        (place, "/nowhere/at/all", "is no place for a file"),
    ],
)
def test_what_is_wrong_is_said(parse: Callable[[object], object], value: object, words: str) -> None:
    """Each refusal names the rule."""
    with pytest.raises(Wrong) as refused:
        parse(value)
    assert words in str(refused.value)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    """Neither in a text nor in a representation nor in a refusal."""
    held = redis_url("redis://user:hunter2@host:6379/0")
    assert "hunter2" not in f"{held} {held!r} {[held]}"
    assert held.value.endswith("/0")
    with pytest.raises(Wrong) as refused:
        redis_url("http://user:hunter2@host")
    assert "hunter2" not in str(refused.value)
    path = tmp_path / "key"
    path.write_text("sk-1\n")
    assert secret_file(str(path)) == Secret("sk-1")
