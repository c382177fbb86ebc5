"""Several gateways decide as one: one decides, all answer with its decision, and what is not known is not stated."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.config.pools import PoolEntry
from gateway.config.supply import SupplyConfig
from gateway.deletion_cost.pod_costs import costs_by_address
from gateway.fleet.pod_state import WatchedPod
from gateway.fleet.view import show_fleet
from gateway.limits.accounts import make_quota_enforcer
from gateway.pipeline.record import Outcome
from gateway.replica_sync.sync import ReplicaSync
from gateway.scaling.controller import STALE_S, SupplyController
from gateway.scaling.demand import DemandMeter, MeteredAdmissionQueue
from gateway.scaling.figures import FleetFigures, PoolFigure, decode, encode
from gateway.scaling.metrics import SupplyCollector
from gateway.scaling.scaler_target import FAILED_PRECONDITION, NOT_FOUND, UNAVAILABLE, ScalerFault, ScalerTarget
from routing.decision.router import Router
from routing.pods import EngineShape, Pod, PodState
from routing.rejection import Reason
from routing.replica_state import StateUpdate, SupplyUpdate
from scorers.registry import routings
from simulator.clock import run_virtually
from supply.desired import desired_engines
from supply.load import ModelLoad
from supply.policy import ControlMode, GuardRails, SupplyPolicy
from supply.state import PoolMemory, SupplyState, TierMemory, decode_state, encode_state
from tenancy.objective import Tier
from tests.routing.engines import ask, place

RAILS = GuardRails(min_engines=0, max_engines=4, max_step_per_minute=10, engine_hours_per_day=96)
POLICY = SupplyPolicy(scaling=ControlMode.ACT, pools={"h100": RAILS}, idle_to_zero_s=20.0, down_after_s=5.0)
H100 = ScalerTarget("m", "h100")
START_S = 30.0


@dataclass
class Applier:
    replica_ids: set[int] = field(default_factory=set)
    supply_listeners: tuple[Callable[[int, bytes, float], None], ...] = ()


@dataclass
class Wire:
    """What a controller sees of replica sync: its id, its peers, and a way to reach them."""

    replica_id: int
    gateways: list[Gateway]
    applier: Applier = field(default_factory=Applier)
    is_cut: bool = False
    sent: list[bytes] = field(default_factory=list)

    def publish(self, update: StateUpdate) -> None:
        assert isinstance(update, SupplyUpdate)
        self.sent.append(update.payload)
        for other in self.gateways:
            if other.wire is not self and not self.is_cut and not other.wire.is_cut:
                other.wire.applier.replica_ids.add(self.replica_id)
                for take in other.wire.applier.supply_listeners:
                    take(self.replica_id, update.payload, _now_s())


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class Gateway:
    """A controller with a fleet of its own, as each gateway has one; made within a loop."""

    def __init__(
        self,
        number: int,
        gateways: list[Gateway],
        policy: SupplyPolicy = POLICY,
        pods: int = 1,
        state_file: Path | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.router = Router(routings()["least-loaded"], exact_sizes=True)
        self.router.fleet.configured_models = frozenset({"m"})
        self.room = MeteredAdmissionQueue(self.router, clock=loop.time, draw=lambda: 0.5)
        self.room.meter = self.meter = DemandMeter(self.router, clock=loop.time)
        self.wire = Wire(number, gateways)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.is_settled = True
        self.tiers: dict[str, Tier] = {}
        self.pools = {"h100": PoolEntry("h100", 2.0, "m", start_s=START_S)}
        self.controller = SupplyController(
            SupplyConfig(policy, state_file=state_file),
            self.router,
            self.room,
            make_quota_enforcer(self.router, {}, lambda: False, clock=loop.time, draw=lambda: 0.5),
            pools=lambda: self.pools,
            tiers=lambda: self.tiers,
            clock=loop.time,
            wall_clock=lambda: 1_800_000_000.0 + loop.time(),
            is_settled=lambda: self.is_settled,
            log_event=lambda _, event, **fields: self.events.append((event, fields)),
        )
        gateways.append(self)
        self.controller.in_thread = at_once  # Threads run in real time.
        self.controller.share(cast("ReplicaSync", self.wire))
        for at in range(pods):
            self.add_pod(at)
        self.running = asyncio.create_task(self.controller.run())

    def add_pod(self, number: int, state: PodState = PodState.READY, pool: str = "h100") -> None:
        url = f"http://p{number}"
        self.router.put_pod(Pod(url, state, frozenset({"m"}), pool=pool, ready_since_s=-1e6))
        self.router.reshape_pod(url, [EngineShape(kv_tokens=100_000)])

    def desired(self, target: ScalerTarget = H100) -> int:
        return self.controller.answer(target).engines

    def fault(self, target: ScalerTarget = H100) -> ScalerFault:
        with pytest.raises(ScalerFault) as caught:
            self.controller.answer(target)
        return caught.value

    def serve(self, number: int, prompt_tokens: int = 20_000) -> None:
        """One request that is placed and ends; without a first token, which would teach that engines take no time."""
        request = replace_id(number, prompt_tokens)
        placement = place(self.router, request, now_s=_now_s())
        self.meter.placed(request, "acme", "default", placement)
        placement.release(_now_s())
        self.meter.on_outcome(Outcome(id=request.id, model="m", tenant="acme", tier="default"))

    def close(self) -> None:
        self.running.cancel()


async def at_once(call: Callable[..., None], *args: object) -> None:
    call(*args)


def replace_id(number: int, prompt_tokens: int) -> Any:
    from msgspec.structs import replace as changed  # noqa: PLC0415

    request = ask(str(number).encode() * 10)
    return changed(request, id=f"r{number}", prompt=changed(request.prompt, size=prompt_tokens))


def played(play: Callable[[list[Gateway]], Awaitable[None]]) -> None:
    """Run a scene in virtual time, and end its gateways."""

    async def run() -> None:
        gateways: list[Gateway] = []
        try:
            await play(gateways)
        finally:
            for gateway in gateways:
                gateway.close()

    run_virtually(run())


def test_all_gateways_answer_alike_with_the_load_of_all() -> None:
    """The one with the smallest id decides; what arrives anywhere counts once."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = Gateway(1, gateways), Gateway(2, gateways)
        answers: list[tuple[int, int]] = []
        for second_of in range(40):
            for number in range(12):  # 12 x 20,000 tokens a second: twenty times what an engine prefills.
                (first if number % 2 else second).serve(100 * second_of + number)
            await asyncio.sleep(1.0)
            if second_of > 5:
                answers.append((first.desired(), second.desired()))
        assert first.controller.is_leader
        assert not second.controller.is_leader
        assert all(one == other for one, other in answers)
        assert answers[-1] == (4, 4)
        assert first.controller.decision.pools == second.controller.decision.pools
        assert first.controller.view()["gateways"] == 2

    played(play)


def test_a_gateway_that_misses_a_peer_states_nothing() -> None:
    """Until the peer is back, or has been away for minutes; one that drains need not be waited for."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = Gateway(1, gateways), Gateway(2, gateways)
        await asyncio.sleep(5.0)
        assert first.desired() == second.desired() == 1
        second.wire.is_cut = True
        await asyncio.sleep(8.0)
        assert (first.fault().status, second.fault().status) == (UNAVAILABLE, UNAVAILABLE)
        assert first.fault().message == "sees 1 of 2 gateways"
        assert not first.controller.view()["is_known"]
        second.wire.is_cut = False
        await asyncio.sleep(3.0)
        assert first.desired() == second.desired()
        second.controller.leave()
        second.close()
        first.wire.applier.replica_ids.discard(2)
        await asyncio.sleep(8.0)
        assert first.desired() == 1

    played(play)


def test_the_next_gateway_goes_on_where_the_last_decided() -> None:
    """With its memory of pools: the count does not jump."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = Gateway(1, gateways, pods=3), Gateway(2, gateways, pods=3)
        await asyncio.sleep(8.0)
        before = second.desired()
        first.controller.leave()
        first.close()
        second.wire.applier.replica_ids.discard(1)
        await asyncio.sleep(7.0)
        assert second.controller.is_leader
        assert second.desired() <= before
        assert second.controller._state.pools

    played(play)


def test_a_decision_that_is_old_is_not_answered_with() -> None:
    """A loop that hangs must not hold a figure up."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways)
        await asyncio.sleep(2.0)
        assert only.desired() == 1
        only.close()
        await asyncio.sleep(STALE_S + 1)
        assert only.fault().status == UNAVAILABLE

    played(play)


def test_before_all_pods_were_probed_nothing_is_stated() -> None:
    """Otherwise a restart would scale down to what it has found so far."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways, pods=3)
        only.is_settled = False
        await asyncio.sleep(3.0)
        assert only.fault().message == "pods are not known yet"
        assert [each.engines for each in only.controller.decision.pools] == [3]

    played(play)


def test_without_the_mode_act_nothing_is_published() -> None:
    """It is computed and shown."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways, replace(POLICY, scaling=ControlMode.ADVISE))
        await asyncio.sleep(2.0)
        assert only.fault().status == FAILED_PRECONDITION
        assert only.controller.view()["pools"][0]["desired_engines"] == 1
        assert not only.controller.covers("m")

    played(play)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ScalerTarget("n", "h100"), "metadata.model: no pool serves n"),
        (ScalerTarget("m", "a100"), "metadata.pool: no a100/either; known: h100/either"),
        (ScalerTarget("m", "h100", tier="platinum"), "metadata.tier: no tier platinum"),
    ],
)
def test_unknown_targets_are_named(target: ScalerTarget, words: str) -> None:
    """With what there is."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways)
        await asyncio.sleep(2.0)
        fault = only.fault(target)
        assert (fault.status, fault.message) == (NOT_FOUND, words)

    played(play)


def test_the_first_request_without_a_pod_raises_the_figure_within_a_second() -> None:
    """Wherever it arrives; watchers are called, and the time left falls."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = Gateway(1, gateways, pods=0), Gateway(2, gateways, pods=0)
        await asyncio.sleep(30.3)
        assert (first.desired(), second.desired()) == (0, 0)
        woken: list[float] = []
        end_watch = first.controller.watch(lambda: woken.append(_now_s()) if first.desired() else None)
        begun_s = _now_s()
        assert second.controller.covers("m")
        second.controller.needed("m")
        second.room.waiting_for_pod["m"] = 1
        await asyncio.sleep(0.5)
        assert (first.desired(), second.desired()) == (1, 1)
        assert woken[0] - begun_s < 0.3
        end_watch()
        await asyncio.sleep(9.5)
        assert second.controller.remaining_s("m") == pytest.approx(START_S - 10.0)
        for gateway in gateways:
            gateway.add_pod(1)
        second.room.waiting_for_pod.clear()
        await asyncio.sleep(2.0)
        assert second.controller.remaining_s("m") > START_S - 1
        assert second.desired() >= 1

    played(play)


def test_a_pool_of_higher_rank_is_not_woken_for_a_first_request() -> None:
    """KEDA starts a pod of every pool that is active."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways, replace(POLICY, pools={"default": RAILS}), pods=0)
        only.pools["cloud"] = PoolEntry("cloud", 1.0, "m", start_s=START_S, rank=1)
        await asyncio.sleep(2.0)
        only.controller.needed("m")
        only.room.waiting_for_pod["m"] = 3
        await asyncio.sleep(2.0)
        answers = [only.controller.answer(ScalerTarget("m", pool)) for pool in ("h100", "cloud")]
        assert [(answer.engines > 0, answer.is_active) for answer in answers] == [(True, True), (False, False)]

    played(play)


def test_pods_are_marked_while_the_count_still_stays() -> None:
    """`hearth deletion-cost` reads the real view: the need has fallen, the count waits; busy pods are marked last."""

    async def play(gateways: list[Gateway]) -> None:
        patient = replace(POLICY, pools={"h100": replace(RAILS, min_engines=1)}, down_after_s=600.0)
        gateway = Gateway(1, gateways, patient, pods=3)
        place(gateway.router, replace_id(1, 20_000), now_s=_now_s())
        busy = next(pod.url for pod in gateway.router.fleet.pods if gateway.router.ledger.running[pod.engines[0].slot])
        await asyncio.sleep(30.0)
        scale = gateway.controller.view()
        (pool,) = scale["pools"]
        assert pool["desired_engines"] == 3
        watched = [WatchedPod(DiscoveredPod(pod.url, pool="h100")) for pod in gateway.router.fleet.pods]
        costs = costs_by_address(scale, show_fleet(gateway.router, watched, _now_s()), {})
        assert costs is not None
        assert len(costs) == 3 - max(pool["needed_engines"], 1)
        assert costs
        assert busy.removeprefix("http://") not in costs

    played(play)


def test_a_quiet_pool_goes_to_zero_and_one_with_a_stream_does_not() -> None:
    """After the stated quiet."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways)
        await asyncio.sleep(5.0)
        request = replace_id(1, 100)
        placement = place(only.router, request, now_s=_now_s())
        only.meter.placed(request, "acme", "default", placement)
        await asyncio.sleep(200.0)
        assert only.desired() == 1
        placement.release(_now_s())
        only.meter.on_outcome(Outcome(id=request.id, model="m", tenant="acme", tier="default"))
        await asyncio.sleep(15.0)
        assert only.desired() == 1
        await asyncio.sleep(80.0)
        answer = only.controller.answer(H100)
        assert (answer.engines, answer.is_active) == (0, False)

    played(play)


def test_a_request_rejected_for_lack_of_a_pod_keeps_the_pool_awake() -> None:
    """Its client returns when the pod is there."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways, pods=0)
        await asyncio.sleep(2.0)
        only.controller.needed("m")
        only.meter.on_outcome(Outcome(id="r", model="m", tenant="acme", tier="default", reason=Reason.NO_POD_READY))
        await asyncio.sleep(20.0)
        assert only.desired() == 1

    played(play)


def test_the_state_travels_without_histories_mostly() -> None:
    """Histories of weeks are long; pools' memories are not."""

    async def play(gateways: list[Gateway]) -> None:
        first = Gateway(1, gateways)
        Gateway(2, gateways)
        for number in range(30):
            first.serve(number)
            await asyncio.sleep(1.0)
        decisions = [message for each in first.wire.sent if isinstance(message := decode(each), FleetFigures)]
        states = [len(decision.state) for decision in decisions if decision.state]
        assert 4 <= len(states) <= 8
        assert max(states) < 2_000

    played(play)


def test_the_state_file_survives_a_restart(tmp_path: Path) -> None:
    """Engine-hours of the day, and forecasts; a damaged file is reported and replaced."""
    path = tmp_path / "supply.json"

    async def before(gateways: list[Gateway]) -> None:
        Gateway(1, gateways, state_file=path)
        await asyncio.sleep(125.0)

    async def after(gateways: list[Gateway]) -> None:
        second = Gateway(1, gateways, state_file=path)
        (memory,) = second.controller._state.pools.values()
        assert memory.figure == 0
        assert memory.hours

    async def damaged(gateways: list[Gateway]) -> None:
        third = Gateway(1, gateways, state_file=path)
        assert [event for event, _ in third.events] == ["supply_state_invalid"]
        await asyncio.sleep(65.0)

    played(before)
    assert [each.name for each in tmp_path.iterdir()] == ["supply.json"]
    played(after)
    path.write_text("{}")
    played(damaged)
    played(after)


def test_metrics_show_the_decision_and_whether_it_is_known() -> None:
    """By model, pool, role and tier; a held count stays shown."""

    async def play(gateways: list[Gateway]) -> None:
        only = Gateway(1, gateways, pods=2)
        for number in range(10):
            only.serve(number)
            await asyncio.sleep(1.0)
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in SupplyCollector(only.controller, None).collect()
            for sample in family.samples
        }
        assert samples["hearth_desired_engines", "m", "h100", "either"] == only.desired()
        assert samples["hearth_desired_engines_known", "m"] == 1.0
        assert any(key[0] == "hearth_desired_tier_engines" and key[-1] == "default" for key in samples)
        only.wire.applier.replica_ids.add(9)
        await asyncio.sleep(2.0)
        held = {
            (sample.name, *sample.labels.values()): sample.value
            for family in SupplyCollector(only.controller, None).collect()
            for sample in family.samples
        }
        assert held["hearth_desired_engines", "m", "h100", "either"] >= 1.0
        assert held["hearth_desired_engines_known", "m"] == 0.0
        assert held["hearth_supply_missing_gateways",] == 1.0

    played(play)


def test_a_peer_with_a_role_that_is_not_known_here_ends_no_loop() -> None:
    """Its figure is left out; known roles are followed, and this gateway decides after the peer has left."""

    async def play() -> tuple[int, int]:
        gateways: list[Gateway] = []
        first, second = Gateway(1, gateways), Gateway(2, gateways)
        await asyncio.sleep(3.0)
        assert first.controller.is_leader
        known = first.controller.decision.pools[0]
        strange = PoolFigure("m", "h100", "encode", 7, 7, 7, "load", is_active=True)
        (take,) = second.wire.applier.supply_listeners
        assert take is not None
        take(1, encode(FleetFigures(99, [strange, known])), _now_s())
        followed = second.desired()
        first.controller.leave()
        first.close()
        await asyncio.sleep(6.0)
        assert second.controller.is_leader
        result = followed, second.desired()
        second.close()
        return result

    assert run_virtually(play()) == (1, 1)


def test_an_update_that_raises_does_not_end_the_batch_of_its_peer() -> None:
    """It is reported."""

    async def play() -> list[BaseException | None]:
        reported: list[BaseException | None] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context.get("exception")))
        gateway = Gateway(1, [])
        gateway.controller._adopt_state = _fail  # type: ignore[method-assign,assignment]
        (take,) = gateway.wire.applier.supply_listeners
        assert take is not None
        take(2, encode(FleetFigures(1, state=b"x")), _now_s())
        gateway.close()
        return reported

    assert [str(error) for error in run_virtually(play())] == ["broken"]


def _fail(*_: object) -> None:
    raise IndexError("broken")


def test_a_memory_that_makes_decisions_fail_is_dropped(tmp_path: Path) -> None:
    """A file of right form with a wrong value holds no model forever."""
    path = tmp_path / "state"
    memory = PoolMemory(hours=(("never", 1.0),))  # type: ignore[arg-type]
    path.write_text(encode_state(SupplyState({"m|h100|either": memory}, {}, {"m": 0.0})))

    async def play() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        gateway = Gateway(1, [], state_file=path)
        await asyncio.sleep(3.0)
        desired = gateway.desired()
        gateway.close()
        return desired

    assert run_virtually(play()) == 1


def test_a_decision_that_raises_holds_its_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are decided, and nothing is stated about this one."""

    def decide(load: ModelLoad, *others: Any) -> Any:
        if load.model == "m":
            raise ZeroDivisionError
        return desired_engines(load, *others)

    monkeypatch.setattr("gateway.scaling.controller.desired_engines", decide)

    async def play() -> tuple[ScalerFault, int]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        gateway = Gateway(1, [])
        gateway.pools["other"] = PoolEntry("other", 2.0, "n", start_s=START_S)
        await asyncio.sleep(3.0)
        result = gateway.fault(), len(gateway.controller.loads)
        assert "n" not in gateway.controller.decision.unknown
        gateway.close()
        return result

    fault, models = run_virtually(play())
    assert (fault.status, fault.message, models) == (UNAVAILABLE, "the decision has failed", 2)


def test_histories_travel_one_model_at_a_time() -> None:
    """The event loop has time for one of them between two requests; a new peer has all after some seconds."""

    async def play(gateways: list[Gateway]) -> None:
        first = Gateway(1, gateways)
        first.pools |= {name: PoolEntry(name, 2.0, name, start_s=START_S) for name in ("n", "o")}
        tiers = {f"{model}|default": TierMemory() for model in ("m", "n", "o")}
        first.controller._state = SupplyState({}, tiers, dict.fromkeys(("m", "n", "o"), 1_800_000_000.0))
        await asyncio.sleep(5.0)
        second = Gateway(2, gateways)
        first.wire.sent.clear()
        await asyncio.sleep(25.0)
        decisions = [each for sent in first.wire.sent if isinstance(each := decode(sent), FleetFigures)]
        states = [decode_state(zlib.decompress(each.state).decode()) for each in decisions if each.state]
        assert max(len(state.tiers) for state in states) == 1
        assert second.controller._state.tiers.keys() == tiers.keys()

    played(play)


def test_further_requests_for_engines_that_are_coming_wake_nothing() -> None:
    """A client in a loop would otherwise have each gateway decide ten times a second."""

    async def play(gateways: list[Gateway]) -> None:
        gateway = Gateway(1, gateways)
        await asyncio.sleep(3.0)
        number = gateway.controller.decision.number
        for _ in range(20):
            gateway.controller.needed("m")
            await asyncio.sleep(0.05)
        assert gateway.controller.decision.number <= number + 2

    played(play)


CLOUD = PoolEntry("cloud", 6.0, "m", rank=1, region="us")
GOLD_TIERS = {"default": Tier("default", ttft_s=2.0, tpot_s=0.05)}


def with_cloud(number: int, gateways: list[Gateway], mode: ControlMode) -> Gateway:
    """A gateway with one engine on premises and one in a cloud."""
    made = Gateway(number, gateways, replace(POLICY, spill=mode))
    made.tiers = GOLD_TIERS
    made.pools["cloud"] = CLOUD
    made.add_pod(9, pool="cloud")
    return made


@pytest.mark.parametrize("mode", [ControlMode.ACT, ControlMode.ADVISE, ControlMode.OFF])
def test_work_leaves_an_overloaded_first_pool_only_where_spill_acts(mode: ControlMode) -> None:
    """All gateways alike; it is shown where it is advised, and taken back when home carries the work again."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = with_cloud(1, gateways, mode), with_cloud(2, gateways, mode)
        for second_of in range(90):
            for number in range(2):  # 2 x 20,000 tokens a second: three times what an engine prefills.
                first.serve(100 * second_of + number)
            await asyncio.sleep(1.0)
        shares = first.router.spill_shares, second.router.spill_shares
        shown = first.controller.view()["spill"]
        if mode is ControlMode.OFF:
            assert shown == {"mode": "off", "models": {}}
        else:
            assert shown["models"]["m"]["share"] > 0.3
            assert shown["models"]["m"]["beyond"] == ["cloud"]
            assert first.controller.decision.spill == second.controller.decision.spill
        if mode is ControlMode.ACT:
            assert shares[0] == shares[1] == {"m": shown["models"]["m"]["share"]}
            assert first.router.fleet.pool_ranks == {"cloud": 1}
        else:
            assert shares == ({}, {})
            assert not first.router.fleet.pool_ranks
        await asyncio.sleep(400.0)
        assert first.router.spill_shares == second.router.spill_shares == {}

    played(play)


def test_a_split_is_judged_in_money_and_shown() -> None:
    """By view and metrics, also of a gateway that follows."""

    async def play(gateways: list[Gateway]) -> None:
        first, second = Gateway(1, gateways), Gateway(2, gateways)
        first.tiers = second.tiers = GOLD_TIERS
        for number in range(90):
            first.serve(number)
            await asyncio.sleep(1.0)
        split = second.controller.view()["split"]["m"]
        assert split["verdict"] == "too_small"
        assert split["colocated_per_hour"] == split["colocated_engines"] * first.pools["h100"].cost_per_engine_hour > 0
        assert split["saving_per_hour"] == split["colocated_per_hour"] - split["split_per_hour"]
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in SupplyCollector(second.controller, None).collect()
            for sample in family.samples
        }
        assert samples["hearth_split_cost_per_hour", "m", "colocated"] == split["colocated_per_hour"]
        assert samples["hearth_split_cost_per_hour", "m", "split"] == split["split_per_hour"]
        assert samples["hearth_split_advised", "m"] == 0.0

    played(play)
