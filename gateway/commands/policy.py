"""`hearth policy check|explain|diff|schema`: validates a policy, explains it, and compares it with another."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gateway.commands.past_requests import read_logged_requests
from gateway.config.loading import check_file
from gateway.config.models import ModelEntry
from gateway.identity.policy import load_policy_file
from tenancy.document import ConfigError, InvalidDocument, InvalidValue
from tenancy.limits.usage import FREE, TokenPrices
from tenancy.policy import Policy
from tenancy.report.dry_run import DryRunResult, LoggedRequest, dry_run
from tenancy.report.explain import differences, explain
from tenancy.report.policy_schema import policy_schema


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    config = ArgumentParser(add_help=False)
    config.add_argument("--config", metavar="FILE", help="configuration with the prices (default $HEARTH_CONFIG)")
    check = actions.add_parser("check", parents=[config], help="validate a policy; list all errors with their paths")
    check.add_argument("file", metavar="FILE", nargs="?", help="policy (default $HEARTH_POLICY, or the config's)")
    dry_run_parser = actions.add_parser(
        "explain", parents=[config], help="show the settings of a tenant and the lines that set them"
    )
    dry_run_parser.add_argument("tenant", metavar="TENANT")
    dry_run_parser.add_argument(
        "file", metavar="FILE", nargs="?", help="policy (default $HEARTH_POLICY, or the config's)"
    )
    diff = actions.add_parser("diff", parents=[config], help="show what changes for each tenant")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    diff.add_argument(
        "--usage-log", metavar="FILE", help="usage log: count the requests that each policy would have rejected"
    )
    actions.add_parser("schema", help="print the JSON Schema of a policy, for editors")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Run the action. Returns the exit status: 0 on success, 1 if there are faults."""
    try:
        match arguments.action:
            case "schema":
                sys.stdout.write(json.dumps(policy_schema(), indent=2) + "\n")
            case "check":
                path, _ = _policy(arguments, variables)
                sys.stdout.write(f"{path}: ok\n")
            case "explain":
                path, policy = _policy(arguments, variables)
                _explain(path, policy, arguments.tenant)
            case _:
                _diff(arguments, variables)
    except InvalidDocument as invalid:
        sys.stdout.write("".join(f"{fault}\n" for fault in invalid.errors))
        return 1
    except (InvalidValue, OSError) as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    return 0


def _policy(arguments: Namespace, variables: Mapping[str, str]) -> tuple[Path, Policy]:
    config = _config(arguments, variables)
    settings = check_file(config, variables) if config is not None else None
    path = arguments.file or variables.get("HEARTH_POLICY") or (settings and settings.policy)
    if not path:
        raise InvalidValue("no policy: pass FILE or --config, or set HEARTH_POLICY")
    return Path(path), load_policy_file(Path(path), variables, None if settings is None else settings.model_table)


def _config(arguments: Namespace, variables: Mapping[str, str]) -> Path | None:
    named = arguments.config or variables.get("HEARTH_CONFIG")
    return Path(named) if named else None


def _explain(path: Path, policy: Policy, name: str) -> None:
    if name not in policy.tenants:
        raise InvalidDocument(
            [ConfigError(str(path), f"unknown tenant `{name}`; the tenants are {', '.join(policy.tenants) or 'none'}")]
        )
    rows = [
        (dry_run_parser.field, dry_run_parser.value, dry_run_parser.source)
        for dry_run_parser in explain(path.read_text(encoding="utf-8"), policy, name)
    ]
    keys = [key.caller.key_id or "" for key in policy.keys.values() if key.caller.tenant.name == name]
    rows.append(("keys", ", ".join(keys) or "none", ""))
    _write(rows)


def _diff(arguments: Namespace, variables: Mapping[str, str]) -> None:
    config = _config(arguments, variables)
    prices = check_file(config, variables).model_table if config is not None else None
    old, new = (load_policy_file(Path(file), variables, prices) for file in (arguments.old, arguments.new))
    changes = [
        (change.tenant or "everybody", change.field, f"{change.before} -> {change.after}")
        for change in differences(old, new)
    ]
    _write(changes or [("nothing changes",)])
    if arguments.usage_log:
        request = read_logged_requests(Path(arguments.usage_log))
        rates = _rates(prices or {})
        sys.stdout.write(f"\n{len(request)} requests of {arguments.usage_log}\n")
        before, after = (dry_run(policy, request, lambda model: rates.get(model, FREE)) for policy in (old, new))
        _write(_fates(before, after, request))


def _rates(prices: Mapping[str, ModelEntry]) -> dict[str, TokenPrices]:
    return {
        name: TokenPrices(entry.input_cost(1, 0) or 0.0, entry.input_cost(1, 1) or 0.0, entry.output_cost(1) or 0.0)
        for name, entry in prices.items()
    }


def _fates(
    old: Mapping[str, DryRunResult], new: Mapping[str, DryRunResult], request: Sequence[LoggedRequest]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("TENANT", "REQUESTS", "WERE REFUSED", "REFUSED BY OLD", "BY NEW", "WHY")]
    for name in dict.fromkeys(held.tenant or "" for held in request):
        before, after = old[name], new[name]
        why = ", ".join(f"{reason} {times}" for reason, times in after.rejected.most_common())
        rejected_count = (str(result.rejected.total()) for result in (before, after))
        rows.append((name or "(none)", str(before.requests), str(before.were_rejected), *rejected_count, why or "-"))
    return rows


def _write(rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
