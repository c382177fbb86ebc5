"""Who serves a request while pods are on trial: the share, both sides, pairs, and what a router makes of it."""

from __future__ import annotations

from dataclasses import replace as with_changes
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routing.blocks import Prompt
from routing.canary.rollout import CanaryReason, CanaryUse, Rollout, ShareCount
from routing.canary.verdict import CanaryTerms
from routing.candidates import Candidates, NoEngineAdmissible
from routing.decision.router import Router
from routing.facts import PodFacts, Role
from routing.ledger import StreamObjective
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from scorers.registry import routings

MODEL = "m"
V1, V2 = PodFacts(revision="v1"), PodFacts(revision="v2")
NIXL = PodFacts(kv_connector="NixlConnector", block_size=16)


def router_of(facts: dict[str, PodFacts], share: float = 0.25, **terms: str) -> Router:
    """A router over pods by name, with revision `v2` (or what `terms` names) on trial."""
    rollout = Rollout(CanaryTerms("new", traffic_share=share, **(terms or {"revision": "v2"})))  # type: ignore[arg-type]
    rollout.use = CanaryUse.SHARE
    router = Router(routings()["warm"], rollout=rollout, exact_sizes=True)
    for name, known in facts.items():
        url = f"http://{name}"
        router.put_pod(Pod(url, PodState.READY, frozenset({MODEL}), pool=name[:-1], facts=known, ready_since_s=-1e6))
        router.reshape_pod(url, [EngineShape(role=known.effective_role, kv_tokens=200_000, block_tokens=16)])
    return router


def request(number: int, tokens: int = 500, **more: object) -> Request:
    """A prompt of its own."""
    prompt = Prompt((1_000_000 + number,), range(tokens, tokens + 1), tokens)
    return Request(f"r{number}", Api.CHAT, MODEL, prompt, stream=True, **more)  # type: ignore[arg-type]


def use(rollout: Rollout | None, use: CanaryUse) -> None:
    """Have pods on trial serve this much."""
    assert rollout is not None
    rollout.use = use


def serve(router: Router, sent: Request, avoid: frozenset[str] = frozenset()) -> tuple[str, CanaryReason | None]:
    """Place a request and end it. Returns its pod, with the prefill pod in front, and why it is a canary's or not."""
    placement = router.place(sent, avoid=avoid, now_s=0.0, draw=0.5)
    side, reason = placement.prefill, placement.canary
    pods = placement.engine.pod if side is None else f"{side.engine.pod}+{placement.engine.pod}"
    placement.release(0.0)
    return pods.replace("http://", ""), reason


@given(
    st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000), st.lists(st.booleans(), max_size=300)
)
def test_the_share_is_never_exceeded_and_exact_within_rounding(share: Fraction, goes: list[bool]) -> None:
    """After any sequence of requests that follow it or do not: at most the share of all, rounded down; and all of it
    where each follows.
    """
    strict, some = ShareCount(float(share)), ShareCount(float(share))
    for number, follows in enumerate(goes, 1):
        strict.count(is_taken=strict.is_due)
        some.count(is_taken=some.is_due and follows)
        assert some.taken <= strict.offered * share
        # Counted in millionths: the share itself is that exact.
        assert int(number * (share - Fraction(1, 1_000_000))) <= strict.taken <= number * share


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_the_share_holds_for_any_interleaving_of_gateways(gateways: int, turns: list[tuple[int, bool]]) -> None:
    """Of any number of gateways that route in any order, sessions and failed pods among them: each keeps it, so all
    together have at most the share.
    """
    routers = [router_of({"a1": V1, "b1": V2}, 0.3) for _ in range(gateways)]
    taken = 0
    for number, (at, has_session) in enumerate(turns, 1):
        sent = request(number, session=str(number % 5) if has_session else None)
        pod, _ = serve(routers[at % gateways], sent)
        taken += pod == "b1"
        assert taken <= 0.3 * number


def test_a_canary_has_its_share() -> None:
    """Of requests without sessions exactly, each with its reason; and the first is never its."""
    router = router_of({"a1": V1, "a2": V1, "b1": V2})
    served = [serve(router, request(number)) for number in range(100)]
    assert served.count(("b1", CanaryReason.SHARE)) == 25
    assert {reason for pod, reason in served if pod != "b1"} == {CanaryReason.STANDING}
    assert served[:3] == [served[0], served[1], served[2]]
    assert served[3][0] == "b1"


def test_a_session_goes_the_same_way() -> None:
    """As long as the share allows; all sessions together have at most the share."""
    router = router_of({"a1": V1, "b1": V2}, 0.4)
    on_trial, taken = set[int](), 0
    for turn in range(20):
        for session in range(50):
            pod, _ = serve(router, request(session + 50 * turn, session=str(session)))
            taken += pod == "b1"
            if pod == "b1":
                on_trial.add(session)
            assert taken <= 0.4 * (50 * turn + session + 1)
    assert len(on_trial) < 30
    assert taken > 300


def test_one_tenant_takes_no_share_of_another() -> None:
    """One whose sessions all belong to the canary has the share of its own requests there, and so have the others."""
    router = router_of({"a1": V1, "b1": V2}, 0.2)
    probe = router_of({"a1": V1, "b1": V2}, 0.2).rollout
    assert probe is not None
    chosen = [name for name in map(str, range(2_000)) if probe._is_session_on_trial(name)][:40]
    taken = dict.fromkeys(("greedy", "modest"), 0)
    for number in range(400):
        tenant = "modest" if number % 4 == 0 else "greedy"
        sent = request(number, session=chosen[number % 40], tenant=tenant)
        taken[tenant] += serve(router, sent)[0] == "b1"
    assert taken == {"greedy": 60, "modest": 20}


def test_who_was_reverted_serves_nothing_and_who_was_promoted_serves_like_all() -> None:
    """Unless there is no other pod: no request is rejected for a canary's sake."""
    router = router_of({"a1": V1, "b1": V2})
    use(router.rollout, CanaryUse.NOTHING)
    assert {serve(router, request(number)) for number in range(40)} == {("a1", None)}
    gone = frozenset({"http://a1"})
    assert serve(router, request(41), gone) == ("b1", CanaryReason.NO_STANDING_POD)
    use(router.rollout, CanaryUse.ALL)
    served = [serve(router, request(100 + number)) for number in range(40)]
    assert set(served) == {("a1", None), ("b1", None)}


def test_what_the_canary_serves_for_others_counts() -> None:
    """Where no standing pod is left it serves, and is given less afterwards."""
    router = router_of({"a1": V1, "b1": V2})
    gone = frozenset({"http://a1"})
    assert [serve(router, request(number), gone)[0] for number in range(3)] == ["b1"] * 3
    assert [serve(router, request(number))[0] for number in range(3, 11)] == ["a1"] * 8


def test_requests_for_named_pods_go_there() -> None:
    """They belong to the response that a pod stores, or compare answers; no side is kept from them or counted."""
    router = router_of({"a1": V1, "b1": V2})
    use(router.rollout, CanaryUse.NOTHING)
    assert serve(router, request(0, pods=frozenset({"http://b1"}))) == ("b1", None)
    assert router.rollout is not None
    assert router.rollout.served(sessions=False) == (0, 0)


def test_a_full_canary_keeps_no_request_waiting() -> None:
    """The standing pods serve it instead, and the reason says so."""
    router = router_of({"a1": V1, "b1": V2}, 0.9)

    class Gate:
        """Admits nothing on pods of the canary."""

        stream_objective: StreamObjective | None = None

        def admits(self, candidates: Candidates, at: int) -> bool:
            return candidates.engines[at].pod != "http://b1"

    for number in range(10):
        placement = router.place(request(number), avoid=frozenset(), now_s=0.0, draw=0.5, gate=Gate())
        assert placement.engine.pod == "http://a1"
        assert placement.canary in (CanaryReason.NOT_ADMITTED, CanaryReason.STANDING)
    assert placement.canary is CanaryReason.NOT_ADMITTED

    class Closed(Gate):
        """Admits nothing."""

        def admits(self, candidates: Candidates, at: int) -> bool:
            return False

    with pytest.raises(NoEngineAdmissible):
        router.place(request(11), avoid=frozenset(), now_s=0.0, draw=0.5, gate=Closed())


def split(role: Role, **facts: str) -> PodFacts:
    """A pod that prefills or decodes for others."""
    return with_changes(NIXL, role=role, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("canary", "on_trial"), [(Role.PREFILL, "x1+d1"), (Role.DECODE, "p1+x1")], ids=["prefill", "decode"]
)
def test_a_canary_of_one_role_pairs_with_the_standing_pods(canary: Role, on_trial: str) -> None:
    """For its share; all other pairs are of standing pods alone."""
    router = router_of({"p1": split(Role.PREFILL), "d1": split(Role.DECODE), "x1": split(canary)}, pool="x")
    for pod in ("d1", "x1"):
        engine = router.fleet.engine(f"http://{pod}")
        if engine is not None and engine.role is Role.DECODE:  # Streams that a long prefill would stall.
            for _ in range(60):
                router.ledger.charge(
                    engine.slot, prefill_tokens=0.0, prefill_s=0.0, kv_tokens=100.0, sequences=1, now_s=0.0
                )
    served = [serve(router, request(number, 16_000)) for number in range(16)]
    assert served.count((on_trial, CanaryReason.SHARE)) == 4
    assert served.count(("p1+d1", CanaryReason.STANDING)) == 12


def test_what_a_canary_did_not_serve_is_not_counted_as_its() -> None:
    """An idle decode engine does a short prompt alone, though a prefill pod on trial is due."""
    router = router_of({"p1": split(Role.PREFILL), "d1": split(Role.DECODE), "x1": split(Role.PREFILL)}, 0.5, pool="x")
    served = {serve(router, request(number, 20)) for number in range(10)}
    assert served == {("d1", CanaryReason.STANDING), ("d1", CanaryReason.NOT_CHOSEN)}
    assert router.rollout is not None
    assert router.rollout.served(sessions=False) == (10, 0)
    alone = replace(request(11), is_single_engine=True)
    assert serve(router, alone) == ("d1", None)
