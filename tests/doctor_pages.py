"""Writes docs/doctor/ from the recipes: `python -m tests.doctor_pages` (part of `make reference`)."""

from __future__ import annotations

from diagnosis.diagnose.pages import pages
from tests.sources import ROOT

FOLDER = ROOT / "docs" / "doctor"


def main() -> None:
    """Write all pages, and remove those of recipes that are gone."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
