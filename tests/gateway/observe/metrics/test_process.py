"""Exceptions that were caught are counted each time and logged once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gateway.observe.metrics.process import CallbackErrorHandler
from gateway.runtime.guard import call_guarded


def fail(words: str) -> None:
    raise ValueError(words)


async def test_exceptions_are_counted_by_loop_and_each_kind_is_logged_once() -> None:
    """The log names loop, kind and place, and not the exception's words: they may be what a client has sent."""
    stated: list[dict[str, Any]] = []
    looked = list[int]()
    errors = CallbackErrorHandler(lambda *_, **fields: stated.append(fields), after=lambda: looked.append(1))
    asyncio.get_running_loop().set_exception_handler(errors)
    for words in ("secret", "secret", "other"):
        call_guarded("timeouts", fail, words)
    call_guarded("queue", fail, "secret")
    assert [(line["loop"], line["error"]) for line in stated] == [("timeouts", "ValueError"), ("queue", "ValueError")]
    assert "secret" not in repr(stated)
    assert stated[0]["location"].startswith("test_process.py:")
    assert len(looked) == 4
    samples = [sample for family in errors.collect() for sample in family.samples if sample.name.endswith("_total")]
    assert {sample.labels["loop"]: sample.value for sample in samples} == {"timeouts": 3.0, "queue": 1.0}


async def test_what_no_guard_names_is_counted_too_and_logged_by_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    """As before: a task whose exception was never retrieved, say."""
    errors = CallbackErrorHandler(lambda *_, **__: None)
    with caplog.at_level(logging.ERROR):
        errors(asyncio.get_running_loop(), {"message": "something else", "exception": ValueError()})
    assert errors.caught == {"other": 1}
    assert [record.message.splitlines()[0] for record in caplog.records] == ["something else"]
