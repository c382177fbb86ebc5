"""Workers of one host come to one word on roles without Redis, whoever is ended or stopped."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from gateway.roles.balancer import RoleAssigner
from gateway.roles.controller import RoleController
from gateway.roles.lease import LEASE_S, HostRoleLease
from routing.facts import Role
from routing.pairing.roles import RoleChange
from tests.gateway.roles.test_balancer import TERMS, router_of


class Time:
    """One machine's clock, as its processes see it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


async def test_one_decides_and_the_others_follow(tmp_path: Path, time: Time) -> None:
    """Whoever came first, for as long as it goes on; its siblings hear its word."""
    one, two = HostRoleLease(tmp_path, "one", time), HostRoleLease(tmp_path, "two", time)
    assert await one.propose({"a": "prefill"}) == {"a": "prefill"}
    assert await two.propose({"a": "decode"}) == {"a": "prefill"}
    assert one.is_held
    assert not two.is_held
    time.now_s += LEASE_S - 1
    await one.propose({"a": "either"})
    time.now_s += LEASE_S - 1
    assert await two.propose({"a": "decode"}) == {"a": "either"}


async def test_a_stopped_decider_is_followed_by_another_and_does_not_fight(tmp_path: Path, time: Time) -> None:
    """Its lease runs out; when it goes on it finds another's word, and follows that."""
    one, two = HostRoleLease(tmp_path, "one", time), HostRoleLease(tmp_path, "two", time)
    await one.propose({"a": "prefill"})
    time.now_s += LEASE_S
    assert not one.is_held
    await two.propose({"a": "decode"})
    assert two.is_held
    assert await one.propose({"a": "prefill"}) == {"a": "decode"}
    assert not one.is_held


async def test_a_decision_that_outlived_its_lease_is_not_announced(tmp_path: Path, time: Time) -> None:
    """The worker had the lease when it began to decide, not when it had decided: it logs nothing, and follows."""
    router, announced = router_of(3), list[str]()

    class Stopped(RoleAssigner):
        def look(self, now_s: float) -> list[RoleChange]:
            router.fleet.override_role("http://1", Role.PREFILL)
            time.now_s += LEASE_S
            return [RoleChange("http://1", Role.PREFILL, 2.0, 0.5)]

    one, two = HostRoleLease(tmp_path, "one", time), HostRoleLease(tmp_path, "two", time)
    at_work = RoleController(router, Stopped(router, TERMS), one, lambda _, words, **__: announced.append(words), time)
    await one.propose({})
    time.now_s += LEASE_S
    await two.propose({"http://1": "decode"})
    time.now_s -= LEASE_S
    assert one.is_held
    await at_work.look()
    assert announced == []
    engine = router.fleet.engine("http://1")
    assert engine is not None
    assert engine.role is Role.DECODE


async def test_a_decision_that_holds_is_announced(tmp_path: Path, time: Time) -> None:
    """Once, with the engine that it is about."""
    router, announced = router_of(3), list[tuple[str, object]]()

    class Moved(RoleAssigner):
        def look(self, now_s: float) -> list[RoleChange]:
            return [RoleChange("http://1", Role.PREFILL, 2.0, 0.5)]

    shared = HostRoleLease(tmp_path, "one", time)
    await shared.propose({})
    at_work = RoleController(
        router,
        Moved(router, TERMS),
        shared,
        lambda _, words, **fields: announced.append((words, fields["upstream"])),
        time,
    )
    await at_work.look()
    assert announced == [("role_changed", "http://1")]


@pytest.mark.parametrize("stated", [b"{", b"[]", b'{"who": "x", "until_s": 1e300, "roles": {}}'])
async def test_a_value_that_makes_no_sense_is_written_over(tmp_path: Path, time: Time, stated: bytes) -> None:
    """Broken, or leased for longer than anybody may."""
    (tmp_path / "roles.json").write_bytes(stated)
    one = HostRoleLease(tmp_path, "one", time)
    assert await one.propose({"a": "prefill"}) == {"a": "prefill"}
    assert one.is_held


async def test_no_one_waits_for_the_file(tmp_path: Path, time: Time) -> None:
    """While a sibling has it, and where the folder is gone: roles stay as they are known."""
    one = HostRoleLease(tmp_path, "one", time)
    with (tmp_path / "roles.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert await one.propose({"a": "prefill"}) == {"a": "prefill"}
        assert not one.is_held
    gone = HostRoleLease(tmp_path / "gone", "two", time)
    assert await gone.propose({"a": "decode"}) == {"a": "decode"}
    assert not gone.is_held
