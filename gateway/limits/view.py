"""What accounts have used, as JSON values for the admin port; of one gateway, or of all workers of one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from gateway.limits.accounts import Quotas, tenant_of
from tenancy.limits.account_usage import Book

Shown = dict[str, Any]


def show_accounts(quotas: Quotas, tenant: str | None, most: int) -> list[Shown]:
    """The accounts of one tenant, or all, those used last first."""
    now_s = quotas.now_s()
    wanted = (book for book in reversed(list(quotas.books)) if tenant is None or tenant_of(book.path) == tenant)
    return [_show(book, now_s) for book in islice(wanted, most)]


def _show(book: Book, now_s: float) -> Shown:
    book.advance(now_s)
    return {
        "account": book.path,
        "open": book.open,
        "limits": {
            kind.value: {
                "limit": meter.limit,
                "used": meter.memory.used,
                "elsewhere": meter.lent.elsewhere + meter.lent.gone if meter.lent is not None else 0.0,
                "slice": meter.cap,
                "all_free_in_s": round(meter.frees_in_s(meter.memory.used, now_s), 1),
            }
            for kind, meter in book.meters.items()
        },
    }


SUMMED = ("used", "slice")


def merge_accounts(lists: Iterable[list[Shown]], most: int) -> list[Shown]:
    """What all workers have used together; what is used elsewhere is then beyond this gateway."""
    merged: dict[str, Shown] = {}
    for shown in (account for accounts in lists for account in accounts):
        known = merged.setdefault(shown["account"], shown)
        if known is shown:
            continue
        known["open"] += shown["open"]
        for kind, more in shown["limits"].items():
            same = known["limits"].setdefault(kind, more)
            if same is not more:
                for word in SUMMED:
                    same[word] += more[word]
                same["elsewhere"] = max(0.0, same["elsewhere"] - more["slice"])
                same["all_free_in_s"] = max(same["all_free_in_s"], more["all_free_in_s"])
    return list(merged.values())[:most]
