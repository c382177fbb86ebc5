"""The keeper of roles over a real router: who begins as what, and who changes when the traffic turns."""

from __future__ import annotations

from itertools import count

from gateway.roles.balancer import RoleAssigner, can_prefill_and_decode
from routing.blocks import Prompt
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.pairing.roles import RoleTerms
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from scorers.registry import routings

MODEL = "m"
BOTH = PodFacts(kv_connector="NixlConnector", kv_role="kv_both")
TERMS = RoleTerms(min_role_s=5.0, window_s=30.0)
NUMBERS = count()


def router_of(pods: int, facts: PodFacts = BOTH) -> Router:
    """A fleet of so many engines, all alike."""
    router = Router(routings()["warm"], exact_sizes=True)
    for number in range(pods):
        url = f"http://{number}"
        router.put_pod(Pod(url, state=PodState.READY, models=frozenset({MODEL}), facts=facts))
        router.reshape_pod(url, [EngineShape(kv_tokens=500_000, block_tokens=16, role=facts.effective_role)])
    return router


def roles_of(router: Router) -> list[Role]:
    """By pod."""
    return [engine.role for pod in router.fleet.pods for engine in pod.engines]


def ask(router: Router, now_s: float, tokens: int) -> Placement:
    """One request with a prompt that nobody holds."""
    prompt = Prompt((next(NUMBERS) + 1_000_000,), range(tokens, tokens + 1), tokens)
    request = Request(f"r{next(NUMBERS)}", Api.CHAT, MODEL, prompt, stream=True)
    return router.place(request, avoid=frozenset(), now_s=now_s, draw=0.5)


def prompts_for(router: Router, keeper: RoleAssigner, seconds: int, from_s: int = 0) -> None:
    """Long prompts and no answers to speak of: two and a half engines' worth of prefill."""
    for second in range(from_s, from_s + seconds):
        placed = [ask(router, float(second), 15_000) for _ in range(2)]
        for placement in placed:
            if placement.prefill is not None:
                placement.prefill.prefill_done(None, second + 0.9)
            placement.first_token(second + 0.95)
            placement.release(second + 0.95)
        keeper.look(second + 1.0)


def test_one_prefills_and_the_others_decode_at_first() -> None:
    """Engines that may do either are given a role at the first look."""
    router = router_of(4)
    keeper = RoleAssigner(router, TERMS)
    assert keeper.look(0.0) == []
    assert sorted(roles_of(router)) == [Role.DECODE, Role.DECODE, Role.DECODE, Role.PREFILL]
    assert keeper.changes == 0


def test_prompts_call_for_prefill() -> None:
    """Engines follow one by one, and the last decoder stays."""
    router = router_of(6)
    keeper = RoleAssigner(router, TERMS)
    keeper.look(0.0)
    prompts_for(router, keeper, 120)
    assert roles_of(router).count(Role.PREFILL) >= 3
    assert Role.DECODE in roles_of(router)
    assert keeper.changes > 0


def test_answers_call_them_back() -> None:
    """Sequences that decode for long are more than the decoders bear."""
    router = router_of(6)
    keeper = RoleAssigner(router, TERMS)
    keeper.look(0.0)
    prompts_for(router, keeper, 120)
    before = roles_of(router).count(Role.PREFILL)
    running = []
    for second in range(120, 200):
        for _ in range(30):
            placement = ask(router, float(second), 100)
            if placement.prefill is not None:
                placement.prefill.prefill_done(None, second + 0.1)
            placement.first_token(second + 0.2)
            running.append(placement)
        keeper.look(second + 1.0)
    assert roles_of(router).count(Role.PREFILL) < before
    for placement in running:
        placement.release(201.0)
    assert router.ledger.is_empty()


def test_asserted_roles_stay() -> None:
    """A producer is never asked to consume, nor a connector that asserts its roles."""
    producer = PodFacts(kv_connector="NixlConnector", kv_role="kv_producer")
    mooncake = PodFacts(kv_connector="MooncakeConnector", kv_role="kv_both")
    assert can_prefill_and_decode(BOTH)
    assert not can_prefill_and_decode(producer)
    assert not can_prefill_and_decode(mooncake)
    assert not can_prefill_and_decode(PodFacts())
    router = router_of(3, producer)
    RoleAssigner(router, TERMS).look(0.0)
    assert roles_of(router) == [Role.PREFILL] * 3


def test_a_role_outlives_what_its_pod_says_next() -> None:
    """A page that is read again does not undo it; a pod that leaves takes it along."""
    router = router_of(2)
    RoleAssigner(router, TERMS).look(0.0)
    before = roles_of(router)
    for number in range(2):
        router.reshape_pod(f"http://{number}", [EngineShape(kv_tokens=400_000)])
    assert roles_of(router) == before
    router.remove_pod("http://0")
    router.put_pod(Pod("http://0", state=PodState.READY, models=frozenset({MODEL}), facts=BOTH))
    router.reshape_pod("http://0", [EngineShape()])
    known = router.fleet.engine("http://0")
    assert known is not None
    assert known.role is Role.EITHER


def test_what_others_changed_stays_for_its_time() -> None:
    """Who takes over from another that decided does not know when it did: a role counts from when it is first seen."""
    router = router_of(6)
    keeper = RoleAssigner(router, TERMS)
    keeper.look(0.0)
    for number in range(6):
        router.fleet.override_role(f"http://{number}", Role.PREFILL if number else Role.DECODE)
    running = [ask(router, 100.0, 500) for _ in range(2_000)]
    for placement in running:
        if placement.prefill is not None:
            placement.prefill.prefill_done(None, 100.1)
        placement.first_token(100.2)
    assert keeper.look(101.0) == []
    assert any(keeper.look(101.0 + second) for second in range(1, 2 + int(TERMS.min_role_s)))
