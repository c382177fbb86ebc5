"""Prefill pods that no connector can use: ready, and in no pair that could ever be made. Reads the fleet only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from routing.connectors.registry import CONNECTORS, connector_of
from routing.connectors.shape import Connector
from routing.facts import Role
from routing.fleet import Fleet
from routing.partners import Partners, find_partners
from routing.pods import Pod, Standing
from routing.roster import Roster


class Unpaired(StrEnum):
    """Why a prefill pod is in no pair. The value says what to do."""

    NO_CONNECTOR = "its kv_connector is not known: set it in its facts (discovery, labels, agent) or in model_list"
    UNFIT_CONNECTOR = (
        "its kv_connector is none of those supported, or lacks a fact that it needs (side_channel, bootstrap, "
        "engine_id, kv_role): see docs/pairs.md"
    )
    NO_DECODE_POD = "no ready pod of its models decodes: start pods with role decode or either"
    NO_PARTNER = (
        "no ready decode pod can read its KV: connector, version, revision, kv_dtype, kv_layout, block_size and, for "
        "most connectors, tp and pp must be equal"
    )


def unpaired(fleet: Fleet, known: Sequence[Connector] = CONNECTORS) -> dict[str, Unpaired]:
    """Ready pods that only prefill and that no decode pod can be paired with, by URL."""
    prefilling = [pod for pod in fleet.pods if pod.standing is Standing.READY and _only_prefills(pod)]
    paired = set[str]()
    has_decode = set[str]()
    # Adapters are served by the pods of their base model.
    for model in sorted({model for pod in prefilling for model in pod.models - pod.adapters}):
        decode = fleet.roster(model)
        if any(engine.role is not Role.PREFILL for engine in decode.engines):
            prefill = fleet.prefill_roster(model, at_large=True)
            has_decode |= {engine.pod for engine in prefill.engines}
            paired |= _paired(decode, find_partners(fleet, decode, prefill, known))
    return {pod.url: _why(pod, known, has_decode) for pod in prefilling if pod.url not in paired}


def _only_prefills(pod: Pod) -> bool:
    return bool(pod.engines) and all(engine.role is Role.PREFILL for engine in pod.engines)


def _paired(decode: Roster, partners: Partners) -> set[str]:
    """Prefill pods that meet a decode engine anywhere."""
    met = {circle.number for engine in decode.engines for circle in partners.decoding.get(engine.slot, ())}
    return {
        engine.pod for engine in partners.prefill.engines if met.intersection(partners.prefilling.get(engine.slot, ()))
    }


def _why(pod: Pod, known: Sequence[Connector], has_decode: set[str]) -> Unpaired:
    if pod.facts.kv_connector is None:
        return Unpaired.NO_CONNECTOR
    connector = connector_of(pod.facts, known)
    if connector is None or not connector.may_prefill(pod.facts):
        return Unpaired.UNFIT_CONNECTOR
    return Unpaired.NO_PARTNER if pod.url in has_decode else Unpaired.NO_DECODE_POD
