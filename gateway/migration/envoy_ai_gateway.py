"""Envoy AI Gateway: AIGatewayRoute, AIServiceBackend, Backend and BackendTrafficPolicy, as documents of one file.

Backends of the OpenAI schema become pods, InferencePools stay pools, token limits become limits of users and tenants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from gateway.migration.document import Imported, Note, Source, count, mappings, without_empty
from gateway.migration.litellm import NOT_VLLM, policy_name
from gateway.migration.llm_d import place_of

MODEL_HEADERS = ("x-ai-eg-model", "x-aigw-model")

DEFAULT_TENANT = "default"

PER_MINUTE: Mapping[str, float] = {"Second": 60, "Minute": 1, "Hour": 1 / 60, "Day": 1 / 1440}

COSTS: Mapping[str, str] = {"InputToken": "input_tpm", "OutputToken": "output_tpm", "TotalToken": "tpm"}
"""Types of `llmRequestCosts`, and the policy's keys."""

STAYS = "stays with Envoy, or is not needed: Hearth listens by itself"

OTHER_KINDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("Gateway", "GatewayClass", "EnvoyProxy", "ClientTrafficPolicy", "Deployment", "Service"),
        STAYS,
    ),
    "BackendSecurityPolicy": "set HEARTH_POD_API_KEY for pods with a key: secrets are not copied",
}


def import_envoy_ai_gateway(documents: Sequence[Any]) -> Imported:
    """Return the configuration and policy for parsed documents. Raises `InvalidValue`."""
    reader = _Reader([Source(one, place_of(one)) for one in documents if isinstance(one, Mapping)])
    return reader.result()


class _Reader:
    """All objects; references between them are followed by name."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._entries: dict[str, dict[str, Any]] = {}
        self._pools: dict[str | None, list[str]] = {}
        self._aliases: dict[str, str] = {}
        self._costs: dict[str, str] = {}
        self._tenants: dict[str, dict[str, Any]] = {}
        self._headers: dict[str, str] = {}
        self._per_user: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}
        self._keys: list[str] = []

    def result(self) -> Imported:
        """Read everything and return the whole."""
        for source in self._sources:
            for word in ("apiVersion", "kind", "metadata"):
                source.take(word)
        for source in self._of("AIGatewayRoute"):
            self._read_route(source)
        for source in self._of("BackendTrafficPolicy"):
            self._read_traffic(source)
        for source in self._sources:
            if reason := OTHER_KINDS.get(str(source.peek("kind"))):
                source.drop(reason)
        config: dict[str, Any] = {"model_list": list(self._entries.values())}
        if self._pools:
            entries = [
                without_empty({"namespace": space, "inference_pools": names}) for space, names in self._pools.items()
            ]
            config["discovery"] = {"kubernetes": entries[0] if len(entries) == 1 else entries}
        changed = [note for source in self._sources for note in source.changed]
        if self._headers:
            changed.append(Note("trusted_proxies", "list the networks of proxies that set these headers"))
        unmapped = [note for source in self._sources for note in source.unmapped()]
        if not self._entries:
            unmapped.insert(0, Note("AIGatewayRoute", "no backend of the OpenAI schema: the configuration has no pod"))
        return Imported(config, self._policy(), tuple(changed), tuple(unmapped))

    def _policy(self) -> dict[str, Any] | None:
        default = self._limits | without_empty({"per_user": self._per_user})
        if not (default or self._tenants or self._aliases or self._keys):
            return None
        tenants = {DEFAULT_TENANT: default, **self._tenants}
        return without_empty(
            {
                "auth": {"keys": {DEFAULT_TENANT: self._keys}} if self._keys else {"default_tenant": DEFAULT_TENANT},
                "headers": self._headers,
                "defaults": without_empty({"aliases": self._aliases}),
            }
        ) | {"tenants": tenants}

    def _of(self, kind: str) -> list[Source]:
        return [source for source in self._sources if source.peek("kind") == kind]

    def _named(self, kind: str, name: Any) -> Source | None:
        found = [source for source in self._of(kind) if source.peek("metadata", "name") == name]
        return found[0] if found else None

    def _read_route(self, source: Source) -> None:
        source.drop(STAYS, "spec", "parentRefs")
        source.take("spec", "schema", "name")
        for row in source.rows("spec", "llmRequestCosts"):
            place = ("spec", "llmRequestCosts", row)
            kind = str(source.peek(*place, "type"))
            if kind in COSTS:
                source.take_each(place, "metadataKey", "type")
                self._costs[str(source.peek(*place, "metadataKey"))] = COSTS[kind]
            else:
                source.drop("no limit counts this; see `uncached_tpm` and budgets", *place)
        for row in source.rows("spec", "rules"):
            self._read_rule(source, ("spec", "rules", row))

    def _read_rule(self, source: Source, place: tuple[str | int, ...]) -> None:
        names = list[str]()
        for at in source.rows(*place, "matches"):
            for header in source.rows(*place, "matches", at, "headers"):
                where = (*place, "matches", at, "headers", header)
                if str(source.peek(*where, "name")).lower() in MODEL_HEADERS and source.peek(*where, "type") in (
                    None,
                    "Exact",
                ):
                    names.append(str(source.peek(*where, "value")))
                    source.take_each(where, "name", "type", "value")
                elif str(source.peek(*where, "name")).lower() == "authorization" and source.peek(*where, "value"):
                    self._add_key(source, where)
                else:
                    source.drop("routes go by the model; identities are the policy's", *where)
        for at in source.rows(*place, "backendRefs"):
            self._read_backend(source, (*place, "backendRefs", at), names)

    def _add_key(self, source: Source, where: tuple[str | int, ...]) -> None:
        """Take the key of a header match over by its digest, so that requests without it stay rejected."""
        source.change("a key of the tenant, for all its models", *where, "value")
        source.take_each(where, "name", "type")
        key = str(source.peek(*where, "value")).removeprefix("Bearer ")
        digest = sha256(key.encode()).hexdigest()
        if digest not in self._keys:
            self._keys.append(digest)

    def _read_backend(self, source: Source, place: tuple[str | int, ...], names: list[str]) -> None:
        reference = source.peek(*place, "name")
        served = source.take(*place, "modelNameOverride")
        models = [str(served)] if served else list(dict.fromkeys(names))
        if not models:
            source.drop("a rule without a model names none: pods report theirs", *place)
            return
        if source.peek(*place, "kind") == "InferencePool":
            self._read_pool(source, place, models)
        elif (url := self._url_of(reference)) is not None:
            source.take(*place, "name")
            for model in models:
                pods = self._entry(model).setdefault("pods", [])
                if url not in pods:
                    pods.append(url)
        else:
            source.drop(NOT_VLLM, *place)
            return
        for name in names:
            if served and name != served:
                self._aliases[name] = str(served)
        source.drop("pods of a model share its traffic by their load; others answer when one fails", *place)

    def _read_pool(self, source: Source, place: tuple[str | int, ...], models: Sequence[str]) -> None:
        source.take_each(place, "group", "kind", "name", "namespace")
        name = str(source.peek(*place, "name"))
        named = source.peek(*place, "namespace") or source.peek("metadata", "namespace")
        space = None if named is None else str(named)
        pools = self._pools.setdefault(space, [])
        if name not in pools:
            pools.append(name)
        for model in models:
            self._entry(model)["inference_pool"] = name

    def _entry(self, model: str) -> dict[str, Any]:
        return self._entries.setdefault(model, {"model_name": model})

    def _url_of(self, name: Any) -> str | None:
        """Return the address of an AIServiceBackend of the OpenAI schema, None for others."""
        service = self._named("AIServiceBackend", name)
        if service is None or service.peek("spec", "schema", "name") != "OpenAI":
            if service is not None:
                service.drop(NOT_VLLM)
            return None
        reference = service.peek("spec", "backendRef")
        backend = self._named("Backend", reference.get("name")) if isinstance(reference, Mapping) else None
        if backend is None:
            port = service.peek("spec", "backendRef", "port")
            if service.peek("spec", "backendRef", "kind") not in (None, "Service") or port is None:
                return None
            self._take_service(service)
            space = service.peek("metadata", "namespace") or "default"
            return f"http://{reference['name']}.{space}.svc.cluster.local:{port}"
        for kind, word in (("fqdn", "hostname"), ("ip", "address")):
            place = ("spec", "endpoints", 0, kind)
            if backend.peek(*place, word) is not None:
                host = str(backend.peek(*place, word))
                if host.endswith((".openai.com", ".anthropic.com", ".googleapis.com", ".azure.com", ".amazonaws.com")):
                    service.drop(NOT_VLLM)
                    backend.drop(NOT_VLLM)
                    return None
                self._take_service(service)
                backend.take_each(place, word, "port")
                backend.drop("one address per backend: add pods to the model", "spec", "endpoints")
                return f"http://{host}:{backend.peek(*place, 'port') or 80}"
        return None

    def _take_service(self, service: Source) -> None:
        service.take("spec", "schema", "name")
        service.take_each(("spec", "backendRef"), "name", "kind", "group", "namespace", "port")

    def _read_traffic(self, source: Source) -> None:
        for word in ("targetRefs", "targetRef"):
            source.drop(STAYS, "spec", word)
        source.take("spec", "rateLimit", "type")
        for row in source.rows("spec", "rateLimit", "global", "rules"):
            self._read_limit(source, ("spec", "rateLimit", "global", "rules", row))

    def _read_limit(self, source: Source, place: tuple[str | int, ...]) -> None:
        key = source.peek(*place, "cost", "response", "metadata", "key")
        limit = "rpm" if source.peek(*place, "cost", "response") is None else self._costs.get(str(key))
        unit = PER_MINUTE.get(str(source.peek(*place, "limit", "unit")))
        if limit is None or unit is None:
            source.drop("no limit counts this; see `uncached_tpm` and budgets", *place)
            return
        headers = [
            (str(header.get("name")), str(header.get("type") or "Exact"), header.get("value"))
            for selector in mappings(source.peek(*place, "clientSelectors"))
            for header in mappings(selector.get("headers"))
        ]
        target = self._target(headers)
        if target is None:
            source.drop("limits are of a tenant or of its users: one header names each", *place)
            return
        source.take_each((*place, "limit"), "requests", "unit")
        source.take_each((*place, "cost", "request"), "from", "number")
        source.take_each((*place, "cost", "response"), "from")
        source.take_each((*place, "cost", "response", "metadata"), "namespace", "key")
        for at in source.rows(*place, "clientSelectors"):
            for header in source.rows(*place, "clientSelectors", at, "headers"):
                source.take_each((*place, "clientSelectors", at, "headers", header), "name", "type", "value")
        given = count(source.peek(*place, "limit", "requests"), "limit.requests")
        target[limit] = min(count(given * unit, limit), target.get(limit, 1 << 62))
        if unit != 1:
            period = str(source.peek(*place, "limit", "unit")).lower()
            words = f"{given} a {period} became {target[limit]} in any sixty seconds"
            source.changed.append(Note(f"{source.name}: {place[-1]}", words))

    def _target(self, headers: Sequence[tuple[str, str, Any]]) -> dict[str, Any] | None:
        """Return the limits that a rule's selectors choose, None where none does."""
        if not headers:
            return self._limits
        if len(headers) > 1:
            return None
        ((name, kind, value),) = headers
        word = {"Distinct": "user", "Exact": "tenant"}.get(kind)
        if word is None or name.lower() in MODEL_HEADERS or self._headers.setdefault(word, name) != name:
            return None
        return self._per_user if word == "user" else self._tenants.setdefault(policy_name(value), {})
