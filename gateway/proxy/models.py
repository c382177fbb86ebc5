"""The models page: what all pods together serve, as one vLLM would list it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from routing.fleet import Fleet, ModelCard, Pod
from routing.refusal import Reason, Refused
from tenancy.tenants import Tenant


def models_page(fleet: Fleet, tenant: Tenant, created_s: int) -> bytes:
    """The list of the models a tenant may use, those included whose pods are not ready now."""
    cards = [_card(name, pods, created_s) for name, pods in fleet.models().items() if tenant.may_use(name)]
    return msgspec.json.encode({"object": "list", "data": cards})


def model_page(fleet: Fleet, tenant: Tenant, name: str, created_s: int) -> bytes:
    """One model. Raises `Refused` where there is none by this name for this tenant."""
    pods = fleet.models().get(name, ())
    if not pods or not tenant.may_use(name):
        raise unknown_model(name)
    return msgspec.json.encode(_card(name, pods, created_s))


def unknown_model(name: str, reason: Reason = Reason.UNKNOWN_MODEL) -> Refused:
    """The same words whether a model does not exist or may not be used: which of the two is nobody's business."""
    return Refused(reason, f"The model `{name}` does not exist.", param="model")


def _card(name: str, pods: Iterable[Pod], created_s: int) -> dict[str, object]:
    cards = [card for pod in pods for card in pod.cards if card.name == name] or [ModelCard(name)]
    lengths = [card.max_model_len for card in cards if card.max_model_len]
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "hearth",
        "root": cards[0].root,
        "parent": cards[0].parent,
        "max_model_len": min(lengths, default=None),
    }
