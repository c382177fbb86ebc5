"""A policy and its key files are taken up when they change; a bad one is named once, and the old one stays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from gateway.config.settings import Settings
from gateway.identity.policy import load_policy, watch_policy
from tenancy.policy import Policy


@dataclass
class Watch:
    """A watch over one policy: what it put in force, and what it said."""

    folder: Path
    policy: Policy | None = None
    stated: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def settings(self) -> Settings:
        return Settings(policy=self.folder / "policy.yaml")

    async def renew(self, policy: Policy | None) -> list[str]:
        self.policy = policy
        return []

    def log_event(self, level: str, message: str, **fields: Any) -> None:
        self.stated.append((level, message, fields))
        self.more.set()

    async def until(self, words: str) -> dict[str, Any]:
        """The next thing that was said, which is this."""
        async with asyncio.timeout(120):
            while not self.stated:
                self.more.clear()
                await self.more.wait()
        level, message, fields = self.stated.pop(0)
        assert words in message, (level, message, fields)
        return fields

    def key(self, name: str, key: str) -> None:
        (self.folder / "keys" / "legal").mkdir(parents=True, exist_ok=True)
        (self.folder / "keys" / "legal" / name).write_text(sha256(key.encode()).hexdigest())

    @property
    def ids(self) -> set[str | None]:
        assert self.policy is not None
        return {key.caller.key_id for key in self.policy.keys.values()}


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[Watch]:
    watch = Watch(folder)
    (folder / "policy.yaml").write_text(f"auth: {{keys_dir: {folder}/keys}}\n")
    watch.key("k1", "sk-1")
    watch.policy = load_policy(watch.settings, {})
    looks, begun = count(), asyncio.Event()

    def in_force() -> Policy | None:
        if next(looks) == 1:
            begun.set()  # asked for the second time, it has seen what there was at first
        return watch.policy

    task = asyncio.create_task(
        watch_policy(
            lambda: watch.settings,
            in_force,
            watch.renew,
            {},
            log_event=watch.log_event,  # type: ignore[arg-type]
            poll_s=0.02,
        )
    )
    async with asyncio.timeout(120):
        await begun.wait()
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_new_keys_and_revoked_ones_are_noticed(tmp_path: Path) -> None:
    """Without any signal."""
    async with watched(tmp_path) as watch:
        watch.key("k2", "sk-2")
        await watch.until("policy_reloaded")
        assert watch.ids == {"k1", "k2"}
        (tmp_path / "keys" / "legal" / "k1").unlink()
        await watch.until("policy_reloaded")
        assert watch.ids == {"k2"}


async def test_a_bad_policy_leaves_the_old_one(tmp_path: Path) -> None:
    """It is named once, with all that is wrong; a good one is then taken."""
    async with watched(tmp_path) as watch:
        held = watch.policy
        (tmp_path / "policy.yaml").write_text("tires: {}\n")
        assert any("tires" in fault for fault in (await watch.until("policy_reload_failed"))["errors"])
        assert watch.policy is held
        (tmp_path / "policy.yaml").write_text(f"auth: {{keys_dir: {tmp_path}/keys}}\ntenants: {{legal: {{rpm: 5}}}}\n")
        await watch.until("policy_reloaded")
        assert watch.policy is not None
        assert watch.policy.tenants["legal"].quota.requests_per_min == 5


async def test_a_folder_that_is_swapped_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes does it: a link that leads elsewhere."""
    async with watched(tmp_path) as watch:
        for name, key in (("one", "sk-1"), ("two", "sk-2")):
            (tmp_path / name / "legal").mkdir(parents=True)
            (tmp_path / name / "legal" / name).write_text(sha256(key.encode()).hexdigest())
        (tmp_path / "link").symlink_to(tmp_path / "one")
        (tmp_path / "policy.yaml").write_text(f"auth: {{keys_dir: {tmp_path}/link}}\n")
        await watch.until("policy_reloaded")
        assert watch.ids == {"one"}
        (tmp_path / "next").symlink_to(tmp_path / "two")
        (tmp_path / "next").rename(tmp_path / "link")
        await watch.until("policy_reloaded")
        assert watch.ids == {"two"}
