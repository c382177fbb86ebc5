"""Prints whether guarantees about quality are kept, and a line for each thing that is wanted.

    python -m bench.cascade [--draws N] [--data FILE ...] [--only NAME ...] [--jobs N] [--keep FILE]
    python -m bench.cascade --drift [--runs N] [--jobs N] [--keep FILE]
    python -m bench.cascade --rows N
    python -m bench.cascade --easy [--draws N] [--jobs N] [--keep FILE]
    python -m bench.cascade --collected [--draws N] [--only NAME ...] [--jobs N] [--keep FILE]
    python -m bench.cascade --real SMALL LARGE --questions FILE [--answer-pattern REGEX] [--true-labels-only]
        [--folder DIR] [--keep FILE]

Populations are made up with known truth, and RouteLLM's answers to GSM8K where its file is found (TRACES, by default
../shared/traces). Each `--data` adds a labelled file, by every one of its signals. Exit status 1 where something falls
short.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cascade.calibration_memory import measure_memory
from bench.cascade.collected import COLLECTED_HEAD, COLLECTED_METHOD, collected_cells, collected_targets
from bench.cascade.drift_runs import DRIFT_HEAD, DRIFT_METHOD, drift_cells, drift_targets
from bench.cascade.easy_traffic import EASY_HEAD, EASY_METHOD, easy_rows, easy_targets
from bench.cascade.guarantees import DRAWS, HEAD, judge_all, targets
from bench.cascade.populations import (
    Population,
    bucketed,
    graded,
    made_up,
    of_file,
    rare,
    three_models,
    tied,
)
from bench.cascade.real_models import REAL_METHOD, RealRun, UnusableModels, measure_real
from bench.cascade.real_pods import served_at
from bench.target import Target
from cascade.calibration.labelled_file import InvalidLabelledFile, read_labelled
from cascade.models import Price
from tests.vllm.children import ChildFailedError

AUROCS = (0.55, 0.65, 0.76, 0.82, 0.9)
ODD = {"tied": tied, "graded": graded, "rare losses": rare, "ten buckets": bucketed, "three rungs": three_models}

ROUTELLM = "routellm_gsm8k_mixtral_gpt4.csv.gz"
PRICES = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": Price(0.6e-6, None, 0.6e-6),
    "gpt-4-1106-preview": Price(10e-6, None, 30e-6),
}
"""Of a token in dollars, at the time when the answers were made."""

METHOD = """\
The labelled population is the truth. Calibration sets are drawn from it with replacement; a promise ("lose at most so
many points, 95 % sure") is broken when the whole population loses more under the ladder file that was written.
made: draws in which a promise was made; else the top rung answers. saved: of what the population's best threshold
saves, mean over all draws, 0 where none was made. plain: the same draws by the rule in use elsewhere, the cheapest
threshold whose loss in the draw is small enough. needs: how many examples the file says would do, where no promise was
made in most draws, by the middle one; enough: share of fresh draws of that size that carry the promise. AUROC: how
well the signal tells who gains from the top rung. A small answer costs 0.1 of a large one and is paid for in vain when
it is given up.\
"""


def populations(traces: Path) -> Iterator[Population]:
    """Made up, and the one file that everybody has."""
    for auroc in AUROCS:
        yield made_up("plain", auroc)
    for name, change in ODD.items():
        yield made_up(name, 0.8, change)
    if (traces / ROUTELLM).exists():
        yield of_file(traces / ROUTELLM, None, PRICES)
    else:
        print(f"{traces / ROUTELLM} is not there: without it", file=sys.stderr)


def given(path: Path) -> list[Population]:
    """A labelled file, by each of its signals."""
    return [of_file(path, signal) for signal in read_labelled(path.read_bytes()).signals or (None,)]


def machine() -> str:
    """In words that name no machine."""
    return f"{os.cpu_count()} shared cores, {platform.python_implementation()} {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cascade", description="Are promises about quality kept?")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--data", action="append", default=[], metavar="FILE", help="a labelled file more")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="populations whose names hold this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="write what is printed to this file too")
    parser.add_argument("--drift", action="store_true", help="runs of shadow samples instead: stopped, noticed")
    parser.add_argument("--runs", type=int, default=DRAWS, help="of each kind of drift run")
    parser.add_argument("--rows", type=int, help="peak memory of a calibration with so many rows instead")
    parser.add_argument(
        "--collected", action="store_true", help="from an empty file instead: collect, calibrate, serve"
    )
    parser.add_argument("--easy", action="store_true", help="what is saved by share of easy traffic instead")
    parser.add_argument(
        *("--real",),
        nargs=2,
        metavar="URL",
        help="two models instead, smaller first: collect, calibrate, serve. URLs of their servers, or folders below "
        ".venv-vllm/models, of which vLLM pods are started",
    )
    parser.add_argument("--questions", type=Path, help='of --real: JSON lines {"question", "answer"}')
    parser.add_argument("--answer-pattern", metavar="REGEX", help="of --real: what is compared of an answer")
    parser.add_argument("--true-labels-only", action="store_true", help="of --real: as `calibrate` takes it")
    parser.add_argument("--folder", type=Path, help="of --real: its files stay there, and what was collected is kept")
    parser.add_argument("--max-loss", type=float, default=0.03, help="of --real (default 0.03)")
    parser.add_argument("--max-tokens", type=int, default=48, help="of --real: of an answer (default 48)")
    options = parser.parse_args(arguments)
    if options.real:
        if options.questions is None:
            parser.error("--real takes --questions FILE")
        return _real(options)
    if options.rows:
        return _print_page([measure_memory(options.rows)], [], options.keep)
    if options.drift:
        return _drift(options)
    if options.easy:
        return _easy(options)
    if options.collected:
        return _collected(options)
    traces = _traces()
    try:
        files = [one for path in options.data for one in given(Path(path))]
        known = [*files, *populations(traces)]
    except (InvalidLabelledFile, OSError) as fault:
        print(f"bench-cascade: {fault}", file=sys.stderr)
        return 1
    selected = [one for one in known if not options.only or any(part in one.name for part in options.only)]
    cells = []
    for cell in judge_all(selected, options.draws, options.jobs):
        print(cell, file=sys.stderr)
        cells.append(cell)
    return _print_page(list(targets(cells)), [METHOD, "\n".join([HEAD, *map(str, cells)])], options.keep)


def _traces() -> Path:
    return Path(os.environ.get("TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))


def _collected(options: argparse.Namespace) -> int:
    cells = []
    for cell in collected_cells(_traces(), options.draws, options.jobs, options.only):
        print(cell, file=sys.stderr, flush=True)
        cells.append(cell)
    parts = [COLLECTED_METHOD, "\n".join([COLLECTED_HEAD, *map(str, cells)])]
    return _print_page(list(collected_targets(cells)), parts, options.keep)


def _easy(options: argparse.Namespace) -> int:
    rows = []
    for row in easy_rows(_traces() / ROUTELLM, options.draws, options.jobs):
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    return _print_page(list(easy_targets(rows)), [EASY_METHOD, "\n".join([EASY_HEAD, *map(str, rows)])], options.keep)


def _drift(options: argparse.Namespace) -> int:
    cells = []
    for cell in drift_cells(options.runs, options.jobs):
        print(cell, file=sys.stderr, flush=True)
        cells.append(cell)
    parts = [DRIFT_METHOD, "\n".join([DRIFT_HEAD, *map(str, cells)])]
    return _print_page(list(drift_targets(cells)), parts, options.keep)


def _real(options: argparse.Namespace) -> int:
    with TemporaryDirectory(prefix="hearth-real-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with served_at([url.rstrip("/").removesuffix("/v1") for url in options.real]) as (small, large):
                run = RealRun(
                    (small, large),
                    options.questions,
                    pattern=options.answer_pattern,
                    true_labels_only=options.true_labels_only,
                    max_loss=options.max_loss,
                    max_tokens=options.max_tokens,
                )
                lines, found = measure_real(run, folder)
        except (UnusableModels, ChildFailedError, OSError) as fault:
            print(f"bench-cascade: {fault}", file=sys.stderr)
            return 1
    return _print_page(found, [REAL_METHOD, "\n".join(lines)], options.keep)


def _print_page(found: Sequence[Target], parts: Sequence[str], keep: Path | None) -> int:
    head = f"bench-cascade, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    page = "\n\n".join([head, *parts, "\n".join(map(str, found))])
    print(page)
    if keep:
        keep.write_text(page + "\n")
    return 0 if found and all(target.is_met for target in found) else 1


if __name__ == "__main__":
    sys.exit(main())
