"""Whatever stands in a policy, the reader says what it is or what is wrong with it."""

from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tenancy.document import InvalidDocument
from tenancy.policy import InlineFiles, KeyFile, Policy
from tenancy.reading.policy import read_policy
from tests.tenancy.documents import VALUES, documents


def read(source: str) -> Policy | None:
    try:
        return read_policy(source, {"HERE": "x"}, InlineFiles(KeyFile("a", "k", "x" * 64)))
    except InvalidDocument:
        return None


@given(st.text())
@example("a: 2001-99-99")
@example("? [a]\n: b")
@example("? {a: b}\n: c")
@example("a: &a {b: *a}")
@example("&a [*a]")
@example("[" * 3000)
@example("a: !!int ''")
@example("a: !!float x")
@example("a: !!binary x")
@example("a: !!set {b, c}")
@example("a: !!omap [b: c]")
@example("a: !!python/object:os.system {}")
@example("a: !!timestamp x")
@example("auth: {keys: {a: [!!set {b}]}}")
@example("a: " + "9" * 5000)
@example("\x00")
@example("a: 190:20:30.15")
def test_any_text_is_a_policy_or_faulty(source: str) -> None:
    """And never anything else."""
    assert read(source) is None


@given(documents(), st.text(max_size=3))
def test_any_document_is_a_policy_or_faulty(document: dict[str, Any], noise: str) -> None:
    """The reader knows the words; their values are all sorts of things."""
    read(yaml.safe_dump(document))
    read(yaml.safe_dump(document) + noise)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_key_is_one_or_faulty(value: object) -> None:
    """In place of a digest, a file's content, or a tenant."""
    read(yaml.safe_dump({"auth": {"keys": {"a": [value], str(value): value}}}))
    with suppress(InvalidDocument):
        read_policy("auth: {keys_dir: k}", {}, InlineFiles(KeyFile("a", "k", str(value)), KeyFile(str(value), "k", "")))
