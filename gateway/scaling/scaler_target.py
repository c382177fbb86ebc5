"""What one trigger of a ScaledObject refers to: its metadata, checked.

KEDA sends the trigger's `metadata` with each call, its own keys included. A misspelled key is an error: it would
otherwise scale another pool than the operator meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from routing.facts import Role

TARGET_KEYS = ("model", "pool", "role", "tier")

KEDA_KEYS = frozenset(
    (
        *("scalerAddress", "scalerPushAddress", "enableTLS", "unsafeSsl", "tlsCertFile"),
        *("caCert", "tlsClientCert", "tlsClientKey", "metricType", "useCachedMetrics"),
    )
)
"""Keys of the trigger that KEDA itself reads."""

MAX_KEYS = 64

MAX_CHARS = 512
"""Of one value."""

INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, UNAVAILABLE = 3, 5, 9, 14
"""gRPC status codes of calls without an answer."""


class ScalerFault(Exception):  # noqa: N818 - it carries the status of an answer
    """A call of the external scaler that is answered with an error: KEDA then applies the object's `fallback`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class ScalerTarget:
    """The engines that a trigger scales, and the tier whose need it follows."""

    model: str
    pool: str
    role: Role = Role.EITHER
    tier: str | None = None
    """None: the need of all tiers together."""


def read_target(metadata: Mapping[str, str]) -> ScalerTarget:
    """Read a trigger's metadata: `model`, and optionally `pool` (default: the model), `role` and `tier`.

    Raises `ScalerFault` with INVALID_ARGUMENT that names the key.
    """
    if len(metadata) > MAX_KEYS:
        raise _invalid(f"metadata: more than {MAX_KEYS} keys")
    unknown = sorted(set(metadata) - KEDA_KEYS - set(TARGET_KEYS))
    if unknown:
        raise _invalid(f"metadata.{_shown(unknown[0])}: unknown key; known: {', '.join(TARGET_KEYS)}")
    found = {key: _text(key, metadata[key]) for key in TARGET_KEYS if key in metadata}
    model = found.get("model")
    if model is None:
        raise _invalid("metadata.model: missing; name the model as in scaling.pools")
    role = found.get("role", Role.EITHER.value)
    if role not in tuple(Role):
        raise _invalid(f"metadata.role: `{_shown(role)}` is not one of {', '.join(Role)}")
    return ScalerTarget(model, found.get("pool", model), Role(role), found.get("tier"))


def _text(key: str, value: str) -> str:
    stripped = value.strip()
    if not stripped or len(stripped) > MAX_CHARS or not stripped.isprintable():
        raise _invalid(f"metadata.{key}: must be one line of 1 to {MAX_CHARS} characters")
    return stripped


def _shown(text: str) -> str:
    return text[:32]


def _invalid(message: str) -> ScalerFault:
    return ScalerFault(INVALID_ARGUMENT, message)
