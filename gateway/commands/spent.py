"""Sums the costs of cascades from usage logs, by tenant, cascade and answering model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from cascade.accounts import CascadeCosts, CostAccounts
from gateway.commands.usage_log import LineHeader, is_record, read_lines
from tenancy.document import InvalidValue

ABSENT = "(none)"
"""Stands for the tenant or model of a request that has none."""

ESCALATED = "escalated"


class UsageLogModel(Struct):
    model: str
    result: str = ""


class UsageLogCascade(Struct):
    cascade: str
    steps: list[UsageLogModel] = []
    cost: float = 0.0
    wasted_cost: float = 0.0
    cost_always_largest: float = 0.0
    cost_always_first: float = 0.0
    shadow_cost: float = 0.0


class UsageLogLine(LineHeader):
    tenant: str | None = None
    cascade: UsageLogCascade | None = None


DECODER = msgspec.json.Decoder(UsageLogLine)
HEADER_DECODER = msgspec.json.Decoder(LineHeader)


def read_cascade_costs(paths: Iterable[Path]) -> CostAccounts:
    """Return the sums of all requests to cascades; other lines are skipped. Raises `InvalidValue`
    if there are none or if one has another schema version.
    """
    accounts = CostAccounts()
    for path in paths:
        for tenant, cascade in _lines(path):
            accounts.add(tenant, cascade.cascade, cascade.steps[-1].model if cascade.steps else ABSENT, _sums(cascade))
    if not accounts.rows():
        raise InvalidValue("no line tells of a ladder: it must be the usage log of a gateway with one")
    return accounts


def _lines(path: Path) -> Iterator[tuple[str, UsageLogCascade]]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            if not is_record(HEADER_DECODER.decode(line), f"{path}:{number}"):
                continue
            line_record = DECODER.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
        if line_record.cascade is not None:
            yield line_record.tenant or ABSENT, line_record.cascade


def _sums(line_record: UsageLogCascade) -> CascadeCosts:
    return CascadeCosts(
        requests=1,
        escalated=int(any(step.result == ESCALATED for step in line_record.steps)),
        cost=line_record.cost,
        wasted=line_record.wasted_cost,
        shadows=line_record.shadow_cost,
        always_top=line_record.cost_always_largest,
        always_first=line_record.cost_always_first,
    )


COLUMNS = ("requests", "climbed", "cost", "wasted", "shadows", "always top", "always first", "saved")


def format_cascade_costs(accounts: CostAccounts) -> str:
    """Return a table: every row, then the sum of each cascade."""
    rows = [(" ".join(key), sums) for key, sums in accounts.rows()]
    cascades = sorted({key[1] for key, _ in accounts.rows()})
    rows += [(f"all of {cascade}", accounts.total(cascade=cascade)) for cascade in cascades]
    width = max(len(name) for name, _ in rows) + 2
    head = f"{'tenant cascade model':<{width}}" + "".join(f"{column:>14}" for column in COLUMNS)
    return "\n".join([head, *(f"{name:<{width}}{_figures(sums)}" for name, sums in rows)]) + "\n"


def _figures(sums: CascadeCosts) -> str:
    saved = f"{sums.saved / sums.always_top:.1%}" if sums.always_top else "-"
    money = (sums.cost, sums.wasted, sums.shadows, sums.always_top, sums.always_first)
    cells = (f"{sums.requests:,}", f"{sums.escalation_share:.1%}", *(f"{one:.6g}" for one in money), saved)
    return "".join(f"{cell:>14}" for cell in cells)
