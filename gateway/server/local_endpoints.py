"""The bodies of `/v1/models` and `/v1/models/NAME`: the models that all pods together serve to a tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cascade.models import Cascade
from routing.fleet import Fleet
from routing.pods import ModelCard, Pod
from routing.rejection import Reason, RequestRejected
from tenancy.tenants import Tenant

Targets = Mapping[str, Sequence[str]]
"""By rewritten name, the models that may answer."""

NO_TARGETS: Targets = {}


def models_body(
    fleet: Fleet, tenant: Tenant, created_s: int, cascades: Mapping[str, Cascade], targets: Targets = NO_TARGETS
) -> bytes:
    """Return the list of the models a tenant may use, under all their names, also if their pods are not ready now."""
    models = _cards_of(fleet, tenant)
    cards = [_card(name, name, listed, created_s) for name, listed in models.items() if tenant.may_use(name)]
    for alias, name in tenant.aliases.items():
        if name in models and alias not in models and tenant.may_use(name):
            cards.append(_card(alias, name, models[name], created_s))
    shown = [cascade for cascade in cascades.values() if _is_shown(cascade, tenant, models)]
    cards += [_cascade_card(cascade, models, created_s) for cascade in shown]
    if targets:
        listed_names = {card["id"] for card in cards}
        # Aliases come before rewrites: an alias may lead to a rewritten name.
        for name in (*targets, *(alias for alias, aliased in tenant.aliases.items() if aliased in targets)):
            if name not in listed_names:
                cards += _rewritten_card(name, targets, tenant, models, cascades, created_s)
    return msgspec.json.encode({"object": "list", "data": cards})


def model_body(
    fleet: Fleet,
    tenant: Tenant,
    name: str,
    created_s: int,
    cascades: Mapping[str, Cascade],
    targets: Targets = NO_TARGETS,
) -> bytes:
    """Return one model. Raises `RequestRejected` if this tenant has none of this name."""
    resolved = tenant.aliases.get(name, name)
    models = _cards_of(fleet, tenant)
    if (cascade := cascades.get(resolved)) is not None and _is_shown(cascade, tenant, models):
        return msgspec.json.encode(_cascade_card(cascade, models, created_s))
    if resolved not in models or not tenant.may_use(resolved):
        for card in _rewritten_card(name, targets, tenant, models, cascades, created_s):
            return msgspec.json.encode(card)
        raise unknown_model(name)
    return msgspec.json.encode(_card(name, resolved, models[resolved], created_s))


Cards = Mapping[str, Sequence[ModelCard]]
"""By model, the cards that its pods list."""


def _cards_of(fleet: Fleet, tenant: Tenant) -> Cards:
    """Return the cards of a tenant's regions, collected in one pass: pods may list thousands of adapters each."""
    served = fleet.models(tenant.regions).items()
    models: dict[str, list[ModelCard]] = {
        name: [] for name, pods in served if any(_may_see(pod, name, tenant) for pod in pods)
    }
    for pod in fleet.pods:
        if tenant.regions is None or pod.region in tenant.regions:
            for card in pod.cards:
                if (listed := models.get(card.name)) is not None and _may_see(pod, card.name, tenant):
                    listed.append(card)
    return models


def _may_see(pod: Pod, model: str, tenant: Tenant) -> bool:
    """Return whether a tenant's requests for a model may be sent to a pod, as far as providers are concerned."""
    return pod.provider is None or (pod.provider, pod.region or "", model) in tenant.grants


def _rewritten_card(
    name: str,
    targets: Targets,
    tenant: Tenant,
    models: Cards,
    cascades: Mapping[str, Cascade],
    created_s: int,
) -> list[dict[str, object]]:
    """Return the card of a rewritten name, of its first target that is served to the tenant; empty if none is."""
    for target in targets.get(tenant.aliases.get(name, name), ()):
        if (cascade := cascades.get(target)) is not None and _is_shown(cascade, tenant, models):
            return [_cascade_card(cascade, models, created_s) | {"id": name}]
        if target in models and tenant.may_use(target):
            return [_card(name, target, models[target], created_s)]
    return []


def unknown_model(name: str, reason: Reason = Reason.UNKNOWN_MODEL) -> RequestRejected:
    """Return the rejection; its text does not reveal whether a model does not exist or may not be used."""
    return RequestRejected(reason, f"The model `{name}` does not exist.", param="model")


def _is_shown(cascade: Cascade, tenant: Tenant, models: Cards) -> bool:
    """Return whether a tenant may use a cascade, and any of its models is served to it."""
    return tenant.may_use(cascade.name) and any(cascade_model.name in models for cascade_model in cascade.models)


def _cascade_card(cascade: Cascade, models: Cards, created_s: int) -> dict[str, object]:
    """Return the card of a cascade; its maximum length is that of its longest model."""
    model_cards = [
        _card(cascade_model.name, cascade_model.name, models.get(cascade_model.name, ()), created_s)
        for cascade_model in cascade.models
    ]
    lengths = [length for cascade_model in model_cards if isinstance(length := cascade_model["max_model_len"], int)]
    return {
        "id": cascade.name,
        "object": "model",
        "created": created_s,
        "owned_by": "hearth",
        "root": cascade.name,
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
