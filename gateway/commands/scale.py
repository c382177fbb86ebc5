"""`hearth scale`: how many engines each pool should have, why, and what they would have cost; or a command to follow.

With `--exec` the command runs for each pool whose figure differs from what was applied: an argument list without a
shell, with the names of the operator's pools and numbers, nothing that a client has sent. It runs only while the
gateway acts (`supply.scaling: act`) and knows its figures.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from subprocess import DEVNULL, Popen, TimeoutExpired
from threading import Event
from typing import Any

from gateway.commands.admin import DEFAULT_URL, AdminClient, add_place_flags, format_table, printable, read_token
from tenancy.document import InvalidValue

View = dict[str, Any]

PLACEHOLDERS = ("model", "pool", "role", "desired", "present")
"""`{pool}` in an argument of the command is replaced; so are the others."""

MAX_CONCURRENT = 4
"""Commands at one time, one for each pool at most."""

UNKNOWN = -1
"""In place of the figure that was applied last, after a command that has failed."""

MIN_SECONDS, MAX_SECONDS = 0.5, 86_400.0
"""Of `--interval` and `--timeout`."""

KILL_S = 5.0
"""From SIGTERM to SIGKILL of a command that takes too long."""

SECRETS = ("HEARTH_ADMIN_TOKEN", "HEARTH_ADMIN_TOKEN_FILE", "HEARTH_POD_API_KEY")
"""Variables that the command does not get."""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    add_place_flags(parser)
    parser.add_argument("--explain", action="store_true", help="show how each figure was made, and the last seven days")
    parser.add_argument("--interval", metavar="S", type=float, default=15.0, help="seconds between two looks (15)")
    parser.add_argument("--timeout", metavar="S", type=float, default=60.0, help="longest run of the command (60)")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument(
        "--exec",
        metavar="ARGV",
        nargs=REMAINDER,
        help="command that sets a pool to its figure; {model}, {pool}, {role}, {desired} and {present} are replaced."
        " All words behind it belong to it",
    )


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the command. Returns 0; 1 where the gateway cannot be read or, with --once, a command has failed."""
    try:
        client = AdminClient(
            arguments.url or variables.get("HEARTH_ADMIN_URL") or DEFAULT_URL, read_token(arguments, variables)
        )
        if arguments.exec is not None:
            return follow(client, arguments, variables)
        view = client.get("/scale")
    except InvalidValue as fault:
        sys.stderr.write(f"hearth: {fault}\n")
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(view, indent=2) + "\n")
    else:
        sys.stdout.write(format_scale(view))
        if arguments.explain:
            sys.stdout.write(format_terms(view) + format_advice(view) + format_days(view))
    return 0


# -- tables --------------------------------------------------------------------------------------------------------

HEAD = ("MODEL", "POOL", "ROLE", "DESIRED", "NEEDED", "PRESENT", "REASON", "PER HOUR", "TIERS")


def format_scale(view: View) -> str:
    """Return a table of pools, and a line for what is not known."""
    rows = [
        (
            pool["model"],
            pool["pool"],
            pool["role"],
            pool["desired_engines"],
            pool["needed_engines"],
            pool["present_engines"],
            pool["reason"],
            f"{pool['price_per_hour']:.2f}",
            ", ".join(f"{name or 'spare'} {engines:.2f}" for name, engines in pool["tiers"].items()) or None,
        )
        for pool in view["pools"]
    ]
    lines = [f"mode: {view['mode']}\n"]
    lines += [f"held, {printable(model)}: {printable(why)}\n" for model, why in view["unknown"].items()]
    lines += [
        f"objectives that these engines cannot keep, {printable(model)}: {printable(', '.join(tiers))}\n"
        for model, tiers in view["short_tiers"].items()
    ]
    lines += [_spill_line(view["spill"]["mode"], *each) for each in view["spill"]["models"].items()]
    lines += [
        f"separate prefill and decode, {printable(model)}: {split['verdict']}, "
        f"{split['split_per_hour']:.2f} per hour instead of {split['colocated_per_hour']:.2f}\n"
        for model, split in view["split"].items()
        if split["verdict"] != "no_traffic"
    ]
    lines += map(_action_line, view["actions"])
    lines += [f"requests without a pod, {printable(model)}: {count}\n" for model, count in view["held"].items()]
    return "".join(lines) + format_table(HEAD, rows)


def format_terms(view: View) -> str:
    """Return the terms of each figure."""
    lines = []
    for pool in view["pools"]:
        lines.append(f"\n{printable(pool['pool'])} ({printable(pool['model'])}, {pool['role']})\n")
        lines += [f"  {name}: {bound}\n" for name, bound in pool["rails"].items() if bound is not None]
        lines += [
            f"  {printable(term['name'])}: {_figure(term['value'])} {printable(term['unit'])}".rstrip() + "\n"
            for term in pool["terms"]
        ]
    return "".join(lines)


def _spill_line(mode: str, model: str, spill: View) -> str:
    """Return one line about the work that leaves the first pools."""
    tiers = f" of {', '.join(spill['leaving'])}" if spill["leaving"] else ""
    where = f" to {', '.join(spill['beyond'])}" if spill["share"] else ""
    percent = f"{100 * spill['share']:.0f} %{printable(tiers + where)}"
    return f"spill ({mode}), {printable(model)}: {percent}, {spill['reason']}\n"


def _action_line(action: View) -> str:
    """Return a line for an action that is proposed, and what each installed actuator would do."""
    concerned = f" ({action['engines']} engines)" if action["engines"] else ""
    giving = f", those of {action['giving_pool']}" if action["giving_pool"] else ""
    plans = [f"; {name} would: {plan}" for name, plan in action["plans"].items()]
    text = f"proposed for {action['pool']}: {action['action']}{concerned}{giving}, because of {action['reason']}"
    return printable(text + "".join(plans)) + "\n"


def format_advice(view: View) -> str:
    """Return how the advice about spill and about separate prefill and decode engines was made."""
    lines = []
    for model, spill in view["spill"]["models"].items():
        lines.append(f"\nspill of {printable(model)} from {printable(', '.join(spill['home']))}\n")
        lines += [
            f"  missed there without spill, {printable(tier)}: {part:.3f}\n" for tier, part in spill["missed"].items()
        ]
    for model, split in view["split"].items():
        ratio = f"{split['prefill_s']:.2f} to {split['decode_s']:.2f}"
        lines += [
            f"\nseparate prefill and decode engines for {printable(model)}: {split['verdict']}\n",
            f"  engine-seconds of prefill to decode: {ratio}; price of decode to prefill: {split['price_ratio']:.2f}\n",
            (
                f"  both in one: {split['colocated_engines']} of {printable(split['colocated_pool'])}, "
                f"{split['colocated_per_hour']:.2f} per hour, {split['colocated_per_million']:.3f} per million tokens\n"
            ),
            (
                f"  separate: {split['prefill_engines']} of {printable(split['prefill_pool'])} and "
                f"{split['decode_engines']} of {printable(split['decode_pool'])}, "
                f"{split['split_per_hour']:.2f} per hour, {split['split_per_million']:.3f} per million tokens\n"
            ),
            (
                f"  gain at the same objectives: {split['saving_per_hour']:.2f} per hour; "
                f"transfer of the mean prompt: {1_000 * split['transfer_s']:.1f} ms\n"
            ),
        ]
    return "".join(lines)


DAY_HEAD = ("DAY", "POOL", "ROLE", "ENGINE-HOURS", "DESIRED", "COST", "DESIRED COST", "MAX", "OBJECTIVE MET")

DAY_S = 86_400


def format_days(view: View) -> str:
    """Return the last seven days by day and pool: what was there, what the figures would have been, and objectives."""
    days: dict[tuple[int, str, str], dict[str, float]] = {}
    for row in view["history"]:
        sums = days.setdefault((row["hour"] // DAY_S, row["pool"], row["role"]), dict.fromkeys(DAY_SUMS, 0.0))
        for name in DAY_SUMS:
            sums[name] = max(sums[name], row[name]) if name == "max_desired" else sums[name] + row[name]
    rows = [
        (
            datetime.fromtimestamp(day * DAY_S, UTC).strftime("%Y-%m-%d"),
            pool,
            role,
            f"{sums['present_engine_hours']:.1f}",
            f"{sums['desired_engine_hours']:.1f}",
            f"{sums['present_cost']:.2f}",
            f"{sums['desired_cost']:.2f}",
            f"{sums['max_desired']:.0f}",
            f"{sums['met'] / sums['finished']:.4f}" if sums["finished"] else None,
        )
        for (day, pool, role), sums in days.items()
    ]
    return "\n" + format_table(DAY_HEAD, rows)


DAY_SUMS = (
    *("present_engine_hours", "desired_engine_hours", "present_cost", "desired_cost", "max_desired"),
    *("finished", "met"),
)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# -- a command that follows ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RunningCommand:
    """One run of the command for one pool."""

    process: Popen[bytes]
    desired: int
    until_s: float
    is_ended: bool = False
    """Whether SIGTERM was sent because it took too long."""


@dataclass(slots=True)
class CommandRunner:
    """Runs the command for pools: bounded in number and time, one at a time for each pool."""

    argv: Sequence[str]
    timeout_s: float
    variables: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    log: Callable[[str], object] = lambda line: sys.stderr.write(line + "\n")
    applied: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The figure for which the command has last succeeded, by model, pool and role."""
    running: dict[tuple[str, str, str], RunningCommand] = field(default_factory=dict)
    waiting: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    """Desired and present engines of pools whose command starts when another one ends."""
    failures: int = 0

    @property
    def is_busy(self) -> bool:
        """Return whether a command runs or waits for its turn."""
        return bool(self.running or self.waiting)

    def look(self, view: View) -> None:
        """Start the command where a figure differs from what was applied."""
        self.waiting.clear()
        self.collect()
        if view["mode"] != "act":
            self.log(f"hearth: supply.scaling is {view['mode']}: nothing is run")
            return
        if not view["is_known"]:
            self.log(f"hearth: figures are held: {printable(view['unknown'])}")
            return
        for pool in view["pools"]:
            key = (pool["model"], pool["pool"], pool["role"])
            desired = int(pool["desired_engines"])
            if any(bound is None for bound in pool["rails"].values()) or key in self.running:
                continue
            if self.applied.get(key, int(pool["present_engines"])) == desired:
                self.applied[key] = desired
            else:
                self.waiting[key] = desired, int(pool["present_engines"])
        self.start_waiting()

    def collect(self) -> None:
        """Note which commands have ended; end those that take too long."""
        for key, command in list(self.running.items()):
            status = command.process.poll()
            if status is not None:
                del self.running[key]
                if status == 0:
                    self.applied[key] = command.desired
                else:
                    self.failures += 1
                    self.applied[key] = UNKNOWN  # It may have set the figure before it failed.
                    self.log(f"hearth: {printable(key[1])}: the command ended with status {status}; it is run again")
            elif self.clock() >= command.until_s:
                _signal(command.process, signal.SIGKILL if command.is_ended else signal.SIGTERM)
                if not command.is_ended:
                    self.log(f"hearth: {printable(key[1])}: the command takes longer than {self.timeout_s:g} s")
                command.is_ended, command.until_s = True, self.clock() + KILL_S

    def close(self) -> None:
        """End all commands."""
        for command in self.running.values():
            _signal(command.process, signal.SIGTERM)
        for command in self.running.values():
            with suppress(TimeoutExpired):
                command.process.wait(KILL_S)
            _signal(command.process, signal.SIGKILL)
            command.process.wait()

    def start_waiting(self) -> None:
        """Start commands of the last look that had to wait, as many as may run."""
        while self.waiting and len(self.running) < MAX_CONCURRENT:
            key = next(iter(self.waiting))
            self._start(key, *self.waiting.pop(key))

    def _start(self, key: tuple[str, str, str], desired: int, present: int) -> None:
        values = dict(zip(PLACEHOLDERS, (*key, str(desired), str(present)), strict=True))
        if any(not text.isprintable() or text.startswith("-") for text in key):
            self.log(f"hearth: {printable(key)}: not the name of a pool; nothing is run")
            return
        argv = [_filled(word, values) for word in self.argv]
        environment = {name: text for name, text in self.variables.items() if name not in SECRETS}
        environment |= {f"HEARTH_SCALE_{name.upper()}": text for name, text in values.items()}
        try:
            process = Popen(argv, env=environment, stdin=DEVNULL, start_new_session=True)  # noqa: S603 - no shell
        except OSError as error:
            self.failures += 1
            self.log(f"hearth: {printable(argv[0])}: {error.strerror}")
            return
        self.running[key] = RunningCommand(process, desired, self.clock() + self.timeout_s)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, text in values.items():
        word = word.replace(f"{{{name}}}", text)
    return word


def _signal(process: Popen[bytes], number: int) -> None:
    """Signal a command and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def follow(client: AdminClient, arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Look every `--interval` seconds, until interrupted. A gateway that cannot be read changes nothing."""
    argv = arguments.exec[1:] if arguments.exec[:1] == ["--"] else list(arguments.exec)
    if not argv:
        raise InvalidValue("--exec needs a command")
    for flag, seconds in (("--interval", arguments.interval), ("--timeout", arguments.timeout)):
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise InvalidValue(f"{flag}: is {seconds:g}; must be from {MIN_SECONDS:g} to {MAX_SECONDS:g} seconds")
    runner = CommandRunner(argv, arguments.timeout, variables)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        while not stop.is_set():
            try:
                runner.look(client.get("/scale"))
            except InvalidValue as fault:
                runner.failures += 1
                sys.stderr.write(f"hearth: {fault}\n")
            until_s = time.monotonic() + arguments.interval
            while not stop.is_set() and (runner.is_busy if arguments.once else time.monotonic() < until_s):
                stop.wait(min(0.2, arguments.interval))
                runner.collect()
                if arguments.once:
                    runner.start_waiting()
            if arguments.once:
                break
    finally:
        runner.close()
    return 1 if arguments.once and runner.failures else 0
