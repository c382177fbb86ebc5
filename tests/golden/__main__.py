"""`python -m tests.golden record FILE` plays the golden run and writes it; `check FILE` plays it and compares.

The committed recording is tests/golden/golden.jsonl.gz. A change of behavior records it again; the commit says why.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.golden.comparing import compare, read, write
from tests.golden.play import play_all, tally


def main() -> int:
    """The exit status: 0 where all is as recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Record or check the golden run.")
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--most", type=int, default=20, help="differences that are shown")
    arguments = parser.parse_args()
    found = play_all()
    if arguments.action == "record":
        write(arguments.file, found)
        print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes, {json.dumps(tally(found))}")
        return 0
    differences = compare(read(arguments.file), found)
    for words in differences[: arguments.most]:
        print(words)
    print(f"{len(found):,} records, {len(differences):,} differences")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
