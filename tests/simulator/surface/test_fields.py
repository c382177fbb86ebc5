"""A body's fields: as lenient as vLLM where it is lenient, and named where they are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulator.surface.fields import Body
from simulator.surface.wire import ApiError

INFINITE = float("inf")


@pytest.mark.parametrize(("value", "number"), [(5, 5), ("5", 5), (5.0, 5), (None, 7), (-1, -1)], ids=str)
def test_integers(value: Any, number: int) -> None:
    """Digits in a string and 5.0 pass, nothing is the default."""
    assert Body({"x": value}).integer("x", 7) == number


@pytest.mark.parametrize(
    ("value", "flag"),
    [(True, True), ("yes", True), ("ON", True), (1, True), (1.0, True), ("0", False), (None, False)],
    ids=str,
)
def test_booleans(value: Any, flag: bool) -> None:
    """Words and numbers for them pass."""
    assert Body({"x": value}).flag("x") is flag


READERS: dict[str, Callable[[Body], Any]] = {
    "integer": lambda body: body.integer("x", low=0),
    "number": lambda body: body.number("x", 0.0, INFINITE),
    "flag": lambda body: body.flag("x"),
    "text": lambda body: body.text("x"),
    "objects": lambda body: body.objects("x"),
    "object": lambda body: body.object("x"),
    "required": lambda body: body.required("x"),
}

WRONG: dict[str, tuple[Any, ...]] = {
    "integer": ("many", 1.5, True, [], -1, float("nan"), INFINITE),
    "number": ("hot", True, [], -1.0, float("nan")),
    "flag": ("perhaps", [], 2),
    "text": (5, [], {}),
    "objects": ({}, "a", ["a"]),
    "object": ([], "a"),
    "required": (None,),
}


@pytest.mark.parametrize(("reader", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_is_wrong_is_named(reader: str, value: Any) -> None:
    """With status 400 and the field's name, whatever it is."""
    with pytest.raises(ApiError) as rejected:
        READERS[reader](Body({"x": value}))
    assert rejected.value.status == 400
    assert rejected.value.param in ("x", "body.x")


@pytest.mark.parametrize("reader", [name for name in READERS if name != "required"])
def test_what_is_not_there_is_nothing(reader: str) -> None:
    """No field has to be there unless it is required."""
    assert not getattr(READERS[reader](Body({})), "fields", READERS[reader](Body({})))


def test_what_is_right_comes_back() -> None:
    """Numbers, texts, objects and lists of them."""
    assert Body({"x": 2}).number("x", 0.0, 3.0) == 2.0
    assert Body({"x": "a"}).text("x") == "a"
    assert Body({"x": {"a": 1}}).object("x").get("a") == 1
    assert Body({"x": [{}]}).objects("x") == [{}]
    assert Body({"x": 0}).required("x") == 0
