"""Routers with pods, and requests with texts, for the tests of the core."""

from collections.abc import Sequence

from routing.blocks import cut_prompt, hash_seed
from routing.candidates import Scorer
from routing.decision.placement import Placement
from routing.decision.router import Router
from routing.facts import NO_FACTS, PodFacts
from routing.pods import EngineShape, Pod, PodState
from routing.request import Api, Request
from scorers.registry import routings

MODEL = "m"
TALK = b"It was the best of times, it was the worst of times, it was the age of wisdom. " * 100


def router_of(pods: int, *, scorers: Sequence[Scorer] | None = None, kv_tokens: int | None = 100_000) -> Router:
    """A router over ready pods `http://0`, `http://1`, ..., by the warm routing unless told otherwise."""
    router = Router(routings()["warm"] if scorers is None else scorers)
    for number in range(pods):
        add_pod(router, f"http://{number}", kv_tokens=kv_tokens)
    return router


def add_pod(
    router: Router,
    url: str,
    *,
    models: Sequence[str] = (MODEL,),
    adapters: Sequence[str] = (),
    ranks: Sequence[int | None] = (None,),
    kv_tokens: int | None = 100_000,
    ready_since_s: float = -1e6,
    facts: PodFacts = NO_FACTS,
) -> None:
    names = frozenset((*models, *adapters))
    router.put_pod(Pod(url, PodState.READY, names, frozenset(adapters), ready_since_s=ready_since_s, facts=facts))
    router.reshape_pod(url, [EngineShape(rank, kv_tokens=kv_tokens, block_tokens=16) for rank in ranks])


def ask(
    text: bytes = TALK,
    *,
    model: str = MODEL,
    api: Api = Api.CHAT,
    session: str | None = None,
    continues: str | None = None,
    sequences: int = 1,
) -> Request:
    prompt = cut_prompt(text, hash_seed(model.encode()))
    return Request("r", api, model, prompt, session=session, continues=continues, sequences=sequences)


def texts_apart(number: int) -> bytes:
    """Prompts that share no beginning."""
    return str(number).encode() + TALK


def serve(router: Router, request: Request, *, now_s: float = 0.0, draw: float = 0.0, avoid: str = "") -> Placement:
    """A request placed, answered as fast as was predicted, and gone again."""
    placement = place(router, request, now_s=now_s, draw=draw, avoid=avoid)
    placement.first_token(now_s + placement.predicted.ttft_s)
    placement.release(now_s + placement.predicted.ttft_s)
    return placement


def place(router: Router, request: Request, *, now_s: float = 0.0, draw: float = 0.0, avoid: str = "") -> Placement:
    return router.place(request, avoid=frozenset({avoid} if avoid else ()), now_s=now_s, draw=draw)
