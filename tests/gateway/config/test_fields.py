"""Addresses, URLs, networks and secrets are taken or refused with what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.fields import (
    Secret,
    parse_address,
    parse_address_or_off,
    parse_file,
    parse_network,
    parse_pod_base_url,
    parse_program_count,
    parse_redis_secret,
    parse_secret,
    parse_secret_file,
    parse_writable_path,
)
from gateway.runtime.addresses import Address
from tenancy.document import InvalidValue


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
    assert parse_address(words) == where
    assert str(where) == shown


def test_loopback_is_known() -> None:
    """By number or by name; everything else can be reached from outside."""
    assert [Address(host, 1).is_loopback for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [False] * 5


def test_a_port_may_be_off() -> None:
    """`off`, which YAML reads as false."""
    assert parse_address_or_off("off") is parse_address_or_off(False) is None
    assert parse_address_or_off("a:1") == Address("a", 1)


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
    assert parse_pod_base_url(given) == url


@pytest.mark.parametrize(
    ("parse", "value", "words"),
    [
        (parse_address, "8000", "must be HOST:PORT"),
        (parse_address, ":8000", "must be HOST:PORT"),
        (parse_address, "a:b", "`b` is not a port"),
        (parse_address, "a:65536", "`65536` is not a port"),
        (parse_address, "a:-1", "`-1` is not a port"),
        (parse_address, "a:²", "is not a port"),
        (parse_address, "::1:80", "write an IPv6 host in brackets: [::1]:80"),
        (parse_address, 8000, "must be a text"),
        (parse_pod_base_url, "pod:8000", "must be a URL beginning with http:// or https://"),
        (parse_pod_base_url, "ftp://pod", "must be a URL beginning with"),
        (parse_pod_base_url, "http://", "must be a URL beginning with"),
        (parse_pod_base_url, "http://a b", "must be a URL beginning with"),
        (parse_pod_base_url, "http://pod:99999", "is not a URL"),
        (parse_pod_base_url, "http://pod:0", "must be a URL beginning with"),
        (parse_pod_base_url, "http://pod/v1", "without a path"),
        (parse_pod_base_url, "http://pod?x=1", "without a path"),
        (parse_pod_base_url, "http://me:pw@pod", "a pod's key belongs into pod_api_key"),
        (parse_redis_secret, "localhost:6379", "must be a URL beginning with redis://, rediss://, unix://"),
        (parse_program_count, 0, "must be from 1 to 256, not 0"),
        (parse_program_count, "257", "must be from 1 to 256, not 257"),
        (parse_program_count, 1.5, "must be a whole number"),
        (parse_program_count, "many", "must be a number"),
        (parse_network, "10.0.0.0/33", "is not a network"),
        (parse_network, "10.0.0.1/8", "has host bits set"),
        (parse_secret, "a\nb", "one line of printable ASCII"),
        (parse_secret, "  ", "one line of printable ASCII"),
        (parse_file, "/nowhere/at/all", "there is no file"),
        (parse_writable_path, "/nowhere/at/all", "is a folder, or its folder does not exist"),
    ],
)
def test_what_is_wrong_is_reported(parse: Callable[[object], object], value: object, words: str) -> None:
    """Each refusal names the rule."""
    with pytest.raises(InvalidValue) as rejected:
        parse(value)
    assert words in str(rejected.value)


def test_secrets_do_not_show(tmp_path: Path) -> None:
    """Neither in a text nor in a representation nor in a refusal."""
    held = parse_redis_secret("redis://user:hunter2@host:6379/0")
    assert "hunter2" not in f"{held} {held!r} {[held]}"
    assert held.value.endswith("/0")
    with pytest.raises(InvalidValue) as rejected:
        parse_redis_secret("http://user:hunter2@host")
    assert "hunter2" not in str(rejected.value)
    path = tmp_path / "key"
    path.write_text("sk-1\n")
    assert parse_secret_file(str(path)) == Secret("sk-1")
