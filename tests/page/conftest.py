"""A browser for each test, and the mark of those that need one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.page.browser import Browser, browsing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a real browser."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.page)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    """A browser with an empty profile."""
    assert shutil.which("chromedriver"), "run make test-page: it sees to a browser"
    async with browsing(tmp_path / "profile") as opened:
        await opened.open("about:blank")
        await opened.requested()
        yield opened
