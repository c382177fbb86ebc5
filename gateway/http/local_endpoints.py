"""What no pod need be asked for: whether we live and are ready, and the models that all pods together serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from cascade.ladder import Ladder
from gateway.cascades.cascades import Ladders
from gateway.http.endpoints import Endpoint, Local
from routing.fleet import Fleet
from routing.pods import ModelCard
from routing.rejection import Reason, Refused
from tenancy.tenants import Tenant


class Answering(Protocol):
    """Whatever a client is answered by."""

    def answer(self, status: int, body: bytes, *, content_type: str = ...) -> None: ...
    def refuse(self, refusal: Refused) -> None: ...


class Pages:
    """One per desk."""

    def __init__(
        self, fleet: Fleet, ladders: Ladders, *, readiness: Callable[[], bool], wall_clock: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._ladders = ladders
        self._readiness = readiness
        self._wall_clock = wall_clock

    def answer(self, endpoint: Endpoint, tenant: Tenant, reply: Answering) -> None:
        """Show a tenant the page of an endpoint. Raises `Refused` where there is none for it."""
        match endpoint.local:
            case Local.HEALTH:
                reply.answer(200, b"", content_type="text/plain")
            case Local.READY if self._readiness():
                reply.answer(200, b"", content_type="text/plain")
            case Local.READY:
                reply.refuse(Refused(Reason.NO_POD_READY, "The gateway is not ready.", retry_after_s=1.0))
            case Local.MODELS:
                reply.answer(200, models_page(self._fleet, tenant, self._created_s(), self._ladders.all))
            case _:
                reply.answer(200, model_page(self._fleet, tenant, endpoint.name, self._created_s(), self._ladders.all))

    def _created_s(self) -> int:
        return int(self._wall_clock())


def models_page(fleet: Fleet, tenant: Tenant, created_s: int, ladders: Mapping[str, Ladder]) -> bytes:
    """The list of the models a tenant may use, those included whose pods are not ready now, by all their names."""
    models = _cards_of(fleet, tenant)
    cards = [_card(name, name, listed, created_s) for name, listed in models.items() if tenant.may_use(name)]
    for alias, name in tenant.aliases.items():
        if name in models and alias not in models and tenant.may_use(name):
            cards.append(_card(alias, name, models[name], created_s))
    shown = [ladder for ladder in ladders.values() if _is_shown(ladder, tenant, models)]
    cards += [_ladder_card(ladder, models, created_s) for ladder in shown]
    return msgspec.json.encode({"object": "list", "data": cards})


def model_page(fleet: Fleet, tenant: Tenant, name: str, created_s: int, ladders: Mapping[str, Ladder]) -> bytes:
    """One model. Raises `Refused` where there is none by this name for this tenant."""
    called = tenant.aliases.get(name, name)
    models = _cards_of(fleet, tenant)
    if (ladder := ladders.get(called)) is not None and _is_shown(ladder, tenant, models):
        return msgspec.json.encode(_ladder_card(ladder, models, created_s))
    if called not in models or not tenant.may_use(called):
        raise unknown_model(name)
    return msgspec.json.encode(_card(name, called, models[called], created_s))


Cards = Mapping[str, Sequence[ModelCard]]
"""By model, what the pods that serve it list of it."""


def _cards_of(fleet: Fleet, tenant: Tenant) -> Cards:
    """Gather the cards of a tenant's regions in one pass: pods may list thousands of adapters each."""
    models: dict[str, list[ModelCard]] = {name: [] for name in fleet.models(tenant.regions)}
    for pod in fleet.pods:
        if tenant.regions is None or pod.region in tenant.regions:
            for card in pod.cards:
                if (listed := models.get(card.name)) is not None:
                    listed.append(card)
    return models


def unknown_model(name: str, reason: Reason = Reason.UNKNOWN_MODEL) -> Refused:
    """The same words whether a model does not exist or may not be used: which of the two is nobody's business."""
    return Refused(reason, f"The model `{name}` does not exist.", param="model")


def _is_shown(ladder: Ladder, tenant: Tenant, models: Cards) -> bool:
    """Whether a tenant may ask for a ladder of which any rung is served to it."""
    return tenant.may_use(ladder.name) and any(rung.model in models for rung in ladder.rungs)


def _ladder_card(ladder: Ladder, models: Cards, created_s: int) -> dict[str, object]:
    """A ladder takes what its longest rung takes."""
    rungs = [_card(rung.model, rung.model, models.get(rung.model, ()), created_s) for rung in ladder.rungs]
    lengths = [length for rung in rungs if isinstance(length := rung["max_model_len"], int)]
    return {
        "id": ladder.name,
        "object": "model",
        "created": created_s,
        "owned_by": "hearth",
        "root": ladder.name,
        "parent": None,
        "max_model_len": max(lengths, default=None),
    }


def _card(shown: str, name: str, listed: Sequence[ModelCard], created_s: int) -> dict[str, object]:
    cards = listed or [ModelCard(name)]
    lengths = [card.max_model_len for card in cards if card.max_model_len]
    return {
        "id": shown,
        "object": "model",
        "created": created_s,
        "owned_by": "hearth",
        "root": cards[0].root,
        "parent": cards[0].parent,
        "max_model_len": min(lengths, default=None),
    }
