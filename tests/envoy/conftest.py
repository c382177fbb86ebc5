"""What all tests with a real Envoy have in common: their mark, and how long they may take on a busy machine."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.envoy)
            item.add_marker(pytest.mark.timeout(180))
