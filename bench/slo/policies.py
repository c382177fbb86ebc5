"""Whose rule admits and places requests in virtual time. A policy is a routing, and a room in front of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.slo.rooms import StaticCaps, StrictPriority
from gateway.pipeline.admission_queue import AdmissionQueue
from routing.decision.router import Router
from simulator.replica import MakeRoom
from tenancy.admission import Admission


@dataclass(frozen=True, slots=True)
class Policy:
    """`knows_engines`: whether a request's tier reaches the engine's own scheduler as its priority."""

    name: str
    routing: str
    knows_engines: bool
    make_room: MakeRoom | None = None
    """None: everything is placed at once."""


def _admitting(router: Router, clock: Callable[[], float], draw: Callable[[], float]) -> AdmissionQueue:
    return AdmissionQueue(router, clock=clock, draw=draw, admission=Admission(router))


FCFS = Policy("fcfs", "least-loaded", knows_engines=False)

STRICT = Policy("strict", "least-loaded", knows_engines=True, make_room=StrictPriority)

CAPS = Policy("caps", "least-loaded", knows_engines=True, make_room=StaticCaps)

HEARTH = Policy("hearth", "warm", knows_engines=True, make_room=_admitting)

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (FCFS, STRICT, CAPS, HEARTH)}
