"""The models page: what all pods together serve, as one vLLM would list it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from routing.fleet import Fleet, ModelCard, Pod
from routing.refusal import Reason, Refused
from tenancy.tenants import Tenant


def models_page(fleet: Fleet, tenant: Tenant, created_s: int) -> bytes:
    """The list of the models a tenant may use, those included whose pods are not ready now, by all their names."""
    models = fleet.models(tenant.regions)
    cards = [_card(name, name, pods, created_s) for name, pods in models.items() if tenant.may_use(name)]
    for alias, name in tenant.aliases.items():
        if name in models and alias not in models and tenant.may_use(name):
            cards.append(_card(alias, name, models[name], created_s))
    return msgspec.json.encode({"object": "list", "data": cards})


def model_page(fleet: Fleet, tenant: Tenant, name: str, created_s: int) -> bytes:
    """One model. Raises `Refused` where there is none by this name for this tenant."""
    called = tenant.aliases.get(name, name)
    pods = fleet.models(tenant.regions).get(called, ())
    if not pods or not tenant.may_use(called):
        raise unknown_model(name)
    return msgspec.json.encode(_card(name, called, pods, created_s))


def unknown_model(name: str, reason: Reason = Reason.UNKNOWN_MODEL) -> Refused:
    """The same words whether a model does not exist or may not be used: which of the two is nobody's business."""
    return Refused(reason, f"The model `{name}` does not exist.", param="model")


def _card(shown: str, name: str, pods: Iterable[Pod], created_s: int) -> dict[str, object]:
    cards = [card for pod in pods for card in pod.cards if card.name == name] or [ModelCard(name)]
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
