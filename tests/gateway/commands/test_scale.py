"""`hearth scale`: the tables, and a command that follows the figures as an argument list within bounds."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.admin import AdminClient
from gateway.commands.scale import (
    MAX_CONCURRENT,
    CommandRunner,
    add_flags,
    follow,
    format_advice,
    format_days,
    format_scale,
    format_terms,
)
from tenancy.document import InvalidValue

RAILS = {"min_engines": 0, "max_engines": 8, "max_step_per_minute": 4, "engine_hours_per_day": 96}


def pool(name: str = "h100", desired: int = 3, present: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "model": "qwen",
        "pool": name,
        "role": "either",
        "desired_engines": desired,
        "needed_engines": desired,
        "present_engines": present,
        "reason": "load",
        "is_active": True,
        "tiers": {"gold": 2.0, "": 1.0},
        "price_per_hour": 7.5,
        "terms": [{"name": "start_s", "value": 60.0, "unit": "s"}, {"name": "budget_left", "value": None, "unit": ""}],
        "rails": RAILS,
        **more,
    }


def view(*pools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "mode": "act",
        "is_known": True,
        "unknown": {},
        "short_tiers": {},
        "held": {},
        "pools": list(pools),
        "history": [],
        "spill": {"mode": "advise", "models": {}},
        "split": {},
        "actions": [],
        **more,
    }


@contextmanager
def running(*argv: str, timeout_s: float = 30.0) -> Iterator[CommandRunner]:
    runner = CommandRunner(argv, timeout_s, {"HEARTH_ADMIN_TOKEN": "secret", "PATH": ""}, log=lambda _: None)
    try:
        yield runner
    finally:
        runner.close()


def finish(runner: CommandRunner) -> None:
    """Wait until all commands have ended."""
    for command in tuple(runner.running.values()):
        command.process.wait(30)
    runner.collect()


def test_the_table_shows_what_is_desired_and_what_is_held() -> None:
    """Control characters cannot steer a terminal."""
    text = format_scale(view(pool(), unknown={"m\x1b": "sees 1 of 2 gateways"}, short_tiers={"qwen": ["gold"]}))
    assert "h100" in text
    assert "gold 2.00, spare 1.00" in text
    assert "held, m\\x1b: sees 1 of 2 gateways" in text
    assert "cannot keep, qwen: gold" in text


def test_the_explanation_has_terms_rails_and_days() -> None:
    """Engine-hours that were there beside those desired, with money and objectives."""
    row = {
        "hour": 0,
        "model": "qwen",
        "pool": "h100",
        "role": "either",
        "observed_s": 3600.0,
        "present_engine_hours": 4.0,
        "desired_engine_hours": 2.5,
        "max_desired": 3,
        "present_cost": 10.0,
        "desired_cost": 6.25,
        "finished": 200,
        "met": 190,
    }
    text = format_terms(view(pool())) + format_days(view(pool(), history=[row, {**row, "hour": 3600}]))
    assert "start_s: 60 s" in text
    assert "budget_left: -" in text
    assert "max_engines: 8" in text
    assert "1970-01-01" in text
    assert "8.0" in text
    assert "12.50" in text
    assert "0.9500" in text


def test_the_command_gets_names_and_numbers_as_arguments(tmp_path: Path) -> None:
    """Without a shell, and without the token; it runs once until the figure changes."""
    out = tmp_path / "out"
    code = "import os,sys; open(sys.argv[1],'a').write('|'.join([*sys.argv[2:], os.environ['HEARTH_SCALE_POOL'], "
    code += "str('HEARTH_ADMIN_TOKEN' in os.environ)]) + chr(10))"
    with running(sys.executable, "-c", code, str(out), "{pool}", "{desired}", "$(id)") as runner:
        for _ in range(3):
            runner.look(view(pool()))
            finish(runner)
        runner.look(view(pool(desired=5)))
        finish(runner)
    assert out.read_text().splitlines() == ["h100|3|$(id)|h100|False", "h100|5|$(id)|h100|False"]


def test_a_command_that_fails_is_run_again() -> None:
    """The figure counts as applied only after success."""
    with running(sys.executable, "-c", "raise SystemExit(3)") as runner:
        for _ in range(2):
            runner.look(view(pool()))
            finish(runner)
        assert runner.failures == 2
        assert 3 not in runner.applied.values()


@pytest.mark.parametrize(
    "held",
    [
        view(pool(), mode="advise"),
        view(pool(), is_known=False),
        view(pool(rails={**RAILS, "max_engines": None})),
        view(pool(name="-rf")),
        view(pool(present=3)),
    ],
    ids=["advise", "unknown", "no rails", "a name like a flag", "as desired"],
)
def test_nothing_is_run_where_nothing_may_act(held: dict[str, Any]) -> None:
    """Or where there is nothing to do."""
    with running(sys.executable, "-c", "") as runner:
        runner.look(held)
        assert not runner.running


def test_commands_are_bounded_in_number_and_time() -> None:
    """One for each pool, four at one time; what takes too long is ended with what it has started."""
    wait = "import time; time.sleep(300)"
    with running(sys.executable, "-c", wait, timeout_s=0.0) as runner:
        runner.look(view(*(pool(name=f"p{number}") for number in range(MAX_CONCURRENT + 3))))
        runner.look(view(*(pool(name=f"p{number}") for number in range(MAX_CONCURRENT + 3))))
        assert len(runner.running) == MAX_CONCURRENT
        processes = [command.process for command in runner.running.values()]
        runner.collect()
        assert [process.wait(30) for process in processes] == [-15] * MAX_CONCURRENT
        runner.collect()
        assert not runner.running
        assert runner.failures == MAX_CONCURRENT


def test_a_command_that_does_not_exist_is_reported() -> None:
    """And tried again at the next look."""
    with running("/does/not/exist") as runner:
        runner.look(view(pool()))
        assert runner.failures == 1


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "nan"], ["--timeout", "-1"]])
def test_times_without_sense_are_an_error(words: list[str]) -> None:
    """An interval of 0 would ask the gateway without a pause."""
    with pytest.raises(InvalidValue, match=words[0]):
        follow(NoClient(), parsed(*words, "--once", "--exec", "true"), {})


def test_only_the_first_two_dashes_are_left_out(tmp_path: Path) -> None:
    """Those of the command itself end its options."""
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'w').write('|'.join(sys.argv[2:]))"
    words = ["--", sys.executable, "-c", code, str(out), "--", "{pool}"]
    arguments = parsed("--once")
    arguments.exec = words
    assert follow(NoClient(), arguments, {}) == 0
    assert out.read_text() == "--|h100"


def test_one_look_sets_all_pools_however_many(tmp_path: Path) -> None:
    """Those beyond the commands at one time wait for their turn."""
    code = "import sys; open(sys.argv[1], 'w').close()"
    arguments = parsed("--once")
    arguments.exec = [sys.executable, "-c", code, str(tmp_path / "{pool}")]
    names = {f"p{number}" for number in range(MAX_CONCURRENT + 2)}
    assert follow(NoClient(*map(pool, names)), arguments, {}) == 0
    assert {path.name for path in tmp_path.iterdir()} == names


class NoClient(AdminClient):
    """Answers with one view."""

    def __init__(self, *pools: dict[str, Any]) -> None:
        super().__init__("http://127.0.0.1:1", "")
        self._pools = pools or (pool(),)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        return view(*self._pools)


def parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_flags(parser)
    return parser.parse_args(words)


def test_after_a_failure_the_figure_of_before_is_set_again(tmp_path: Path) -> None:
    """The command may have done its work before it failed: engines that nobody wants would stay."""
    out = tmp_path / "out"
    code = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); sys.exit(sys.argv[2] == '5')"
    with running(sys.executable, "-c", code, str(out), "{desired}") as runner:
        for desired in (3, 5, 3):
            runner.look(view(pool(desired=desired)))
            finish(runner)
    assert out.read_text() == "353"


def test_spill_and_split_are_shown_in_money_and_share() -> None:
    """One line each in the table, and their reasons with --explain."""
    spill = {
        "share": 0.25,
        "reason": "overload",
        "home": ["h100"],
        "beyond": ["cloud"],
        "leaving": ["gold"],
        "missed": {"gold": 0.4},
    }
    split = {
        "verdict": "split",
        "colocated_pool": "h100",
        "prefill_pool": "h100",
        "decode_pool": "l40s",
        "colocated_engines": 20,
        "prefill_engines": 8,
        "decode_engines": 10,
        "colocated_per_hour": 80.0,
        "split_per_hour": 50.0,
        "colocated_per_million": 0.4,
        "split_per_million": 0.25,
        "prefill_s": 7.5,
        "decode_s": 9.0,
        "price_ratio": 0.6,
        "transfer_s": 0.012,
        "saving_per_hour": 30.0,
    }
    seen = view(pool(), spill={"mode": "act", "models": {"qwen": spill}}, split={"qwen": split})
    table, reasons = format_scale(seen), format_advice(seen)
    assert "spill (act), qwen: 25 % of gold to cloud, overload" in table
    assert "separate prefill and decode, qwen: split, 50.00 per hour instead of 80.00" in table
    assert "missed there without spill, gold: 0.400" in reasons
    assert "8 of h100 and 10 of l40s, 50.00 per hour, 0.250 per million tokens" in reasons
    assert "gain at the same objectives: 30.00 per hour; transfer of the mean prompt: 12.0 ms" in reasons
