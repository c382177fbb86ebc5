"""The page of rejection reasons, held against the table that makes the responses."""

import re
from pathlib import Path

from gateway.pipeline.rejections import RESPONSES

PAGE = Path(__file__).parents[3] / "docs" / "reasons.md"


def test_the_page_lists_every_reason_with_its_status_code_and_fault() -> None:
    """One row per reason, as responses carry them."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)` \| (\w+) \| [^|]+ \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == [
        (reason.value, str(saying.status), saying.code, saying.fault.value) for reason, saying in RESPONSES.items()
    ]
