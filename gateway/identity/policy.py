"""Loads the policy that the settings name, and reloads it when it or one of its files changes.

A policy is checked against what it needs: key files, prices, the library for tokens. Kubernetes changes what it mounts
without a signal, so the files are polled; an invalid policy is reported, and the old one stays in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from gateway.config.loading import POLICY_FILE_KEYS, relative_to
from gateway.config.models import ModelEntry
from gateway.config.settings import Settings
from gateway.identity.key_folder import PolicyFileSystem
from gateway.identity.tokens import read_keys
from gateway.runtime.event_log import EventLog
from gateway.runtime.guard import report_exception, restarted
from tenancy.document import ConfigError, InvalidDocument, InvalidValue
from tenancy.policy import Policy
from tenancy.reading.policy import read_policy
from tenancy.tenants import Tenant


def load_policy(settings: Settings, variables: Mapping[str, str]) -> Policy | None:
    """Load the policy of the settings. Returns None if they name none. Raises `InvalidDocument`."""
    return None if settings.policy is None else load_policy_file(settings.policy, variables, settings.model_table)


def load_policy_file(path: Path, variables: Mapping[str, str], prices: Mapping[str, ModelEntry] | None) -> Policy:
    """Load the policy of one file. Raises `InvalidDocument`, with the file's name before each path.

    `prices`: the models' prices, which budgets need; None leaves budgets unchecked.
    """
    try:
        policy = read_policy(
            path.read_text(encoding="utf-8"), variables, PolicyFileSystem(), relative_to(path, POLICY_FILE_KEYS)
        )
        if faults := [*_bad_keys(policy), *_unpriced(policy, prices)]:
            raise InvalidDocument(faults)
    except InvalidDocument as invalid:
        raise InvalidDocument([fault.within(path) for fault in invalid.errors]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument([ConfigError(str(path), f"cannot be read: {error}")]) from None
    return policy


def _bad_keys(policy: Policy) -> Iterator[ConfigError]:
    if policy.jwt is None:
        return
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        yield ConfigError("auth.jwt", "needs a library: pip install 'hearth-gateway[jwt]'")
    elif policy.jwt.jwks is not None:
        try:
            read_keys(policy.jwt.jwks)
        except InvalidValue as wrong:
            yield ConfigError("auth.jwt.jwks_file", str(wrong))


def _unpriced(policy: Policy, prices: Mapping[str, ModelEntry] | None) -> Iterator[ConfigError]:
    """Yield the models that a budget covers and that have no price."""
    if prices is None:
        return
    for name, tenant in policy.tenants.items():
        if not _has_budget(tenant):
            continue
        if tenant.models is None:
            yield ConfigError(f"tenants.{name}.models", "is missing: a budget needs to know which models it pays for")
        for model in sorted(tenant.models or ()):
            entry = prices.get(model)
            if entry is None or entry.input_cost_per_token is None or entry.output_cost_per_token is None:
                words = f"`{model}` has no price in the model_list of the configuration"
                yield ConfigError(f"tenants.{name}.max_budget", words)


def _has_budget(tenant: Tenant) -> bool:
    quotas = (tenant.quota, tenant.per_user, *tenant.groups.values(), *tenant.keys.values())
    return any(quota.budget is not None for quota in quotas)


POLL_INTERVAL_S = 2.0


class OnReload(Protocol):
    """Called after each attempt to put a policy in force."""

    def __call__(self, *, is_successful: bool) -> None:
        """Take the result."""


def _ignored(*, is_successful: bool) -> None:
    """Take no note of a reload."""


FileVersions = frozenset[tuple[str, int, int, int]]


@restarted("policy watch")
async def watch_policy(
    settings: Callable[[], Settings],
    in_force: Callable[[], Policy | None],
    renew: Callable[[Policy | None], Awaitable[list[str]]],
    variables: Mapping[str, str],
    *,
    log_event: EventLog,
    on_reload: OnReload = _ignored,
    poll_s: float = POLL_INTERVAL_S,
) -> None:
    """Poll the files until cancelled. `renew` puts a policy in force and returns its faults.

    `on_reload` is called after each attempt.
    """
    known = seen = await asyncio.to_thread(_stamps, settings(), in_force())
    while True:
        await asyncio.sleep(poll_s)
        before, seen = seen, await asyncio.to_thread(_stamps, settings(), in_force())
        if seen == known or seen != before:
            continue  # unchanged, or still being written
        before, known = known, seen  # noted before the files are read, so that later changes are seen next time
        try:
            policy = await asyncio.to_thread(load_policy, settings(), variables)
            if policy == in_force():
                continue
            faults = await renew(policy)
        except InvalidDocument as invalid:
            faults = [str(fault) for fault in invalid.errors]
        except Exception as error:  # noqa: BLE001 - reported; the files are read again at the next look
            report_exception("policy watch", error)
            known = before
            continue
        on_reload(is_successful=not faults)
        if faults:
            log_event("error", "policy_reload_failed", errors=faults)
            continue
        log_event("info", "policy_reloaded", file=str(settings().policy))


def _stamps(settings: Settings, policy: Policy | None) -> FileVersions:
    """Return all files of the policy with their versions."""
    if settings.policy is None:
        return frozenset()
    named = policy.files if policy is not None else ()
    return frozenset(_found([settings.policy, *map(Path, named)]))


def _found(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        try:
            yield from _stamped((path, *path.glob("*"), *path.glob("*/*")))
        except OSError:
            continue  # deleted meanwhile: the next poll sees the change


def _stamped(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    for path in paths:
        with suppress(OSError):
            held = path.stat()
            yield str(path), held.st_ino, held.st_mtime_ns, held.st_size
