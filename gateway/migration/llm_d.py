"""llm-d's router and the Gateway API Inference Extension: EndpointPickerConfig, InferencePool, InferenceObjective and
InferenceModelRewrite, alone or inside ConfigMaps, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from gateway.migration.document import Imported, Note, Path, Source, mappings, number, without_empty
from tenancy.document import load_all_yaml

DEFAULT_TENANT, DEFAULT_TIER = "default", "standard"

DEFAULT_SELECTOR = "llm-d.ai/inferenceServing=true"
"""The label that llm-d's charts give to engines."""

ENGINES = "stays as it is: engines are found by it"

IN_SECONDS = "weights have no counterpart: the score is seconds of cached prompt, queue, memory and pairs"

PREFIX = frozenset(
    {
        "prefix-cache-scorer",
        "prefix-cache",
        "precise-prefix-cache-scorer",
        "prefix-cache-affinity-filter",
        "no-hit-lru-scorer",
    }
)

PRECISE = frozenset({"precise-prefix-cache-scorer", "precise-prefix-cache-producer"})

LOAD = frozenset(
    {
        *(
            "queue-scorer",
            "kv-cache-scorer",
            "kv-cache-utilization-scorer",
            "load-aware-scorer",
            "running-requests-size-scorer",
        ),
        *(
            "active-request-scorer",
            "token-load-scorer",
            "latency-scorer",
            "queue-depth-scorer",
            "running-requests-scorer",
        ),
    }
)

KEPT: Mapping[str, str] = {
    "single-profile-handler": "there is one profile",
    "single-profile": "there is one profile",
    "max-score-picker": "the smallest sum of seconds is chosen",
    "max-score": "the smallest sum of seconds is chosen",
    "random-picker": "ties are broken at random",
    "weighted-random-picker": "ties are broken at random",
    "decode-filter": "roles are read from the label llm-d.ai/role",
    "prefill-filter": "roles are read from the label llm-d.ai/role",
    "by-label": "roles are read from the label llm-d.ai/role",
    "by-label-selector": "roles are read from the label llm-d.ai/role",
    "prefill-header-handler": "the prefill pod is named by x-prefiller-host-port, as before (docs/extproc.md)",
    "disagg-headers-handler": "the prefill pod is named by x-prefiller-host-port, as before (docs/extproc.md)",
    "pd-profile-handler": "prefill and decode are chosen as a pair, or one engine for both, per request",
    "disagg-profile-handler": "prefill and decode are chosen as a pair, or one engine for both, per request",
    "lora-affinity-scorer": "part of every routing (lora_affinity)",
    "session-affinity-scorer": "part of every routing (session_affinity), by x-session-id",
    "session-affinity-filter": "part of every routing (session_affinity), by x-session-id",
    "data-parallel-profile-handler": "each data-parallel rank is an engine of its own",
    "token-producer": "pods' /tokenize gives the tokens of a prompt",
    "tokenizer": "pods' /tokenize gives the tokens of a prompt",
    "metrics-data-source": "pods are probed and scraped",
    "core-metrics-extractor": "pods are probed and scraped",
    "endpoint-notification-source": "pods are probed and scraped",
    "openai-parser": "bodies of OpenAI's and Anthropic's APIs are read",
}
"""Plugins whose work Hearth does without being told, and how."""

REASONS: Mapping[str, str] = {
    "pd-slo-pair-optimizer": "objectives are those of tiers: `ttft_s`, `tpot_s`",
    "pd-slo-profile-handler": "objectives are those of tiers: `ttft_s`, `tpot_s`",
    "slo-aware-profile-handler": "objectives are those of tiers: `ttft_s`, `tpot_s`",
    "predicted-latency-scorer": "latency is learned per engine; objectives are those of tiers",
    "probabilistic-admitter": "admission rejects what cannot meet its objective",
    "latency-slo-admitter": "admission rejects what cannot meet its objective",
    "prefix-based-pd-decider": "pairs are scored per request, without thresholds",
    "always-disagg-pd-decider": "pairs are scored per request; one engine may be better",
    "header-based-testing-filter": "for tests only",
    "encode-filter": "no stage of its own for encoders",
    "encoder-header-handler": "no stage of its own for encoders",
    "always-encode-decider": "no stage of its own for encoders",
    "ed-profile-handler": "no stage of its own for encoders",
    "epd-profile-handler": "no stage of its own for encoders",
    "utilization-detector": "admission computes whether an objective can be met",
    "concurrency-detector": "admission computes whether an objective can be met",
}


def import_llm_d(documents: Sequence[Any], pods: Sequence[str] = ()) -> Imported:
    """Return the configuration and policy for parsed documents.

    `pods`: URLs to use instead of the pools, as outside a cluster.
    """
    reader = _Reader(pods)
    for document in _unpacked(documents):
        reader.read(document)
    return reader.result()


def _unpacked(documents: Sequence[Any]) -> Iterator[Source]:
    """Yield each object, with those inside it as objects of their own: in ConfigMaps, Helm values, inline fields."""
    for document in documents:
        if isinstance(document, Mapping):
            source = Source(document, place_of(document))
            for path, inner in _embedded(document, ()):
                source.take(*path)
                yield from (Source(one, f"{source.name} {path[-1]}") for one in inner)
            yield source


def _embedded(value: Any, path: Path) -> Iterator[tuple[Path, list[Mapping[str, Any]]]]:
    """Yield the places of objects inside a document, as text or as mappings."""
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, Mapping):
        children = [(str(key), child) for key, child in value.items()]
    elif isinstance(value, list):
        children = list(enumerate(value))
    for step, child in children:
        inner = _parsed(child) if isinstance(child, str) and "kind:" in child else [child]
        objects = [one for one in inner if isinstance(one, Mapping) and str(one.get("kind")) in READ]
        if objects:
            yield (*path, step), objects
        else:
            yield from _embedded(child, (*path, step))


def place_of(document: Mapping[str, Any]) -> str:
    """Return `Kind/name`, or the kind alone."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{document.get('kind', 'document')}/{name}" if name else str(document.get("kind", "document"))


def _parsed(text: Any) -> list[Any]:
    try:
        return load_all_yaml(str(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []


READ = frozenset(
    {"EndpointPickerConfig", "InferencePool", "InferenceObjective", "InferenceModel", "InferenceModelRewrite"}
)
"""Kinds that are read."""


class _Reader:
    """Collects what each object says."""

    def __init__(self, pods: Sequence[str]) -> None:
        self._pods = list(pods)
        self._sources: list[Source] = []
        self._kubernetes: list[dict[str, Any]] = []
        self._tiers: dict[str, dict[str, Any]] = {}
        self._aliases: dict[str, str] = {}
        self._extproc: dict[str, Any] = {"listen": "0.0.0.0:9002", "trust_headers": True}
        self._routing: str | None = None
        self._is_precise = False
        self._tier_fields: dict[str, Any] = {}

    def read(self, source: Source) -> None:
        """Read one object."""
        self._sources.append(source)
        for word in ("apiVersion", "kind", "metadata"):
            source.take(word)
        match source.peek("kind"):
            case "EndpointPickerConfig":
                self._read_picker(source)
            case "InferencePool":
                self._read_pool(source)
            case "InferenceObjective" | "InferenceModel":
                self._read_objective(source)
            case "InferenceModelRewrite":
                self._read_rewrite(source)
            case "HTTPRoute" | "Gateway" | "Service" | "Deployment" | "ServiceAccount" | "LeaderWorkerSet":
                source.change(
                    ENGINES if source.peek("kind") != "HTTPRoute" else "stays as it is: it routes to the pool", "spec"
                )
            case "LLMInferenceService":
                self._read_service(source)
            case None:
                self._read_values(source)
            case _:
                source.drop("no counterpart for this kind")

    def result(self) -> Imported:
        """Return the whole."""
        config: dict[str, Any] = {"extproc": self._extproc, "discovery": self._discovery()}
        if self._is_precise:
            config["kv_events"] = True
        if self._routing is not None:
            config["routing"] = self._routing
        tiers = self._tiers or ({DEFAULT_TIER: {"priority": 0}} if self._tier_fields else {})
        tiers = {name: {**self._tier_fields, **fields} for name, fields in tiers.items()}
        policy: dict[str, Any] | None = None
        if tiers or self._aliases:
            if tiers and DEFAULT_TIER not in tiers:
                tiers[DEFAULT_TIER] = {**self._tier_fields, "priority": 0}
            defaults = without_empty({"tier": DEFAULT_TIER if tiers else None, "aliases": self._aliases})
            auth = {"default_tenant": DEFAULT_TENANT}
            policy = without_empty({"auth": auth, "tiers": tiers, "defaults": defaults}) | {
                "tenants": {DEFAULT_TENANT: {}}
            }
        changed = [note for source in self._sources for note in source.changed]
        if policy is not None:
            changed.append(
                Note("x-llm-d-inference-objective", "names a tier; believed from Envoy (extproc.trust_headers)")
            )
        unmapped = [note for source in self._sources for note in source.unmapped()]
        return Imported(config, policy, tuple(changed), tuple(unmapped))

    def _discovery(self) -> dict[str, Any]:
        if self._pods:
            return {"static": {"pods": self._pods}}
        if not self._kubernetes:
            return {"kubernetes": {"selector": DEFAULT_SELECTOR}}
        return {"kubernetes": self._kubernetes[0] if len(self._kubernetes) == 1 else self._kubernetes}

    def _read_pool(self, source: Source) -> None:
        entry: dict[str, Any] = without_empty({"namespace": source.peek("metadata", "namespace")})
        if str(source.peek("apiVersion")).startswith("inference.networking.k8s.io/"):
            source.take("spec", "selector")
            source.take("spec", "targetPorts")
            entry["inference_pools"] = [source.peek("metadata", "name")]
        else:
            labels = source.take("spec", "selector")
            labels = labels if isinstance(labels, Mapping) else {}
            labels = labels["matchLabels"] if isinstance(labels.get("matchLabels"), Mapping) else labels
            entry["selector"] = ",".join(f"{key}={value}" for key, value in labels.items())
            if (port := source.take("spec", "targetPortNumber")) is not None:
                entry["port"] = port
            source.changed.append(
                Note(f"{source.name}: spec.selector", "followed by labels: Hearth reads pools of v1 only")
            )
        for word in ("endpointPickerRef", "extensionRef"):
            if (mode := source.take("spec", word, "failureMode")) is not None:
                source.changed.append(Note(f"{source.name}: spec.{word}.failureMode", f"stays in the pool: {mode}"))
            source.change("name Hearth's Service and its port 9002 there", "spec", word)
        source.take("spec", "appProtocol")
        source.take("status")
        if (
            entry.get("inference_pools")
            and self._kubernetes
            and self._kubernetes[-1].get("namespace") == entry.get("namespace")
        ):
            pools = self._kubernetes[-1].setdefault("inference_pools", [])
            if "selector" not in self._kubernetes[-1]:
                pools.extend(entry["inference_pools"])
                return
        self._kubernetes.append(entry)

    def _read_service(self, source: Source) -> None:
        """Read KServe's LLMInferenceService: engines and pool stay; the scheduler is replaced."""
        source.take_each(("spec", "router", "scheduler", "pool", "ref"), "name")
        if (name := source.peek("spec", "router", "scheduler", "pool", "ref", "name")) is not None:
            space = source.peek("metadata", "namespace")
            self._kubernetes.append(without_empty({"namespace": space, "inference_pools": [name]}))
        for word in (
            "model",
            "replicas",
            "template",
            "worker",
            "prefill",
            "parallelism",
            "labels",
            "annotations",
            "baseRefs",
        ):
            source.change(ENGINES, "spec", word)
        source.drop("the scheduler is Hearth", "spec", "router", "scheduler")

    def _read_values(self, source: Source) -> None:
        """Read Helm values of the pool's chart: labels and ports of the engines."""
        for place in (("inferencePool",), ("router", "inferencePool"), ("router",), ()):
            labels = source.take(*place, "modelServers", "matchLabels")
            if not isinstance(labels, Mapping) or not labels:
                continue
            entry: dict[str, Any] = {"selector": ",".join(f"{key}={value}" for key, value in labels.items())}
            ports = source.take(*place, "targetPorts") or source.take(*place, "modelServers", "targetPorts")
            port = source.take(*place, "targetPortNumber")
            if isinstance(ports, list) and ports and isinstance(ports[0], Mapping):
                port = ports[0].get("number", port)
            if port is not None:
                entry["port"] = round(number(port, "targetPorts"))
            self._kubernetes.append(entry)
        for word in ("modelArtifacts", "decode", "prefill", "routing", "multinode"):
            source.change(ENGINES, word)
        source.drop("the picker's own deployment: see the chart's values")

    def _read_objective(self, source: Source) -> None:
        name = str(source.peek("metadata", "name"))
        priority = source.take("spec", "priority")
        source.take_each(("spec", "poolRef"), "group", "kind", "name")
        self._tiers[name] = {"priority": round(number(0 if priority is None else priority, "spec.priority"))}
        if source.peek("kind") == "InferenceModel":
            critical = {"Critical": 10, "Standard": 0, "Sheddable": -10}.get(str(source.take("spec", "criticality")), 0)
            self._tiers[name] = {"priority": critical}
            if model := source.take("spec", "modelName"):
                self._targets(source, str(model), ("spec", "targetModels"), "name")

    def _read_rewrite(self, source: Source) -> None:
        source.take_each(("spec", "poolRef"), "group", "kind", "name")
        for row in source.rows("spec", "rules"):
            names = [
                str(source.take("spec", "rules", row, "matches", at, "model", "value"))
                for at in source.rows("spec", "rules", row, "matches")
                if source.peek("spec", "rules", row, "matches", at, "model", "value")
            ]
            for at in source.rows("spec", "rules", row, "matches"):
                source.take("spec", "rules", row, "matches", at, "model", "type")
            if not names:
                source.drop("a rewrite of all models has no counterpart: aliases are by name", "spec", "rules", row)
            for name in names:
                self._targets(source, name, ("spec", "rules", row, "targets"), "modelRewrite")

    def _targets(self, source: Source, name: str, place: tuple[str | int, ...], word: str) -> None:
        """Alias a name to its heaviest target; shares of traffic have no counterpart."""
        targets = source.peek(*place)
        if not mappings(targets) or len(mappings(targets)) < len(targets):
            return
        best = max(range(len(targets)), key=lambda at: (number(targets[at].get("weight", 1), "weight"), -at))
        target = str(source.take(*place, best, word))
        if len(targets) == 1:
            source.take(*place, best, "weight")
        else:
            source.drop(
                "shares between models have no counterpart; the largest target answers (see canaries, cascades)", *place
            )
        if target != name:
            self._aliases[name] = target

    def _read_picker(self, source: Source) -> None:
        kinds: dict[str, str] = {}
        for row in source.rows("plugins"):
            kind = str(source.peek("plugins", row, "type"))
            kinds[str(source.take("plugins", row, "name") or kind)] = kind
            self._read_plugin(source, row, kind)
        used = set[str]()
        for row in source.rows("schedulingProfiles"):
            source.take("schedulingProfiles", row, "name")
            for at in source.rows("schedulingProfiles", row, "plugins"):
                place = ("schedulingProfiles", row, "plugins", at)
                reference = str(source.take(*place, "pluginRef"))
                used.add(kinds.get(reference, reference))
                source.drop(IN_SECONDS, *place, "weight")
        handler = str(source.peek("profileHandler", "type"))
        if handler in KEPT:
            source.take("profileHandler", "type")
        source.drop(REASONS.get(handler, "no counterpart for this plugin"), "profileHandler")
        if used and not used & (PREFIX | PRECISE):
            self._routing = "least-loaded" if used & LOAD else ("round-robin" if "random-picker" in used else None)
        self._read_gates(source)

    def _read_plugin(self, source: Source, row: int, kind: str) -> None:
        place = ("plugins", row)
        if kind in PRECISE:
            self._is_precise = True
            source.change("KV events, as `kv_events`: addresses and block sizes are read from the pods", *place, "type")
            source.drop(READ_FROM_ENGINES, *place, "parameters")
        elif kind in PREFIX:
            source.change("part of the score, as seconds of uncached prompt", *place, "type")
            source.drop(READ_FROM_ENGINES, *place, "parameters")
        elif kind in LOAD:
            source.change("part of the score, as seconds of queue and memory", *place, "type")
            source.drop(IN_SECONDS, *place, "parameters")
        elif kind in KEPT:
            if (named := source.take(*place, "parameters", "maxNumOfEndpoints")) is not None:
                self._extproc["max_endpoints"] = round(number(named, "maxNumOfEndpoints"))
            source.change(KEPT[kind], *place, "type")
            source.drop("no counterpart", *place, "parameters")
        else:
            source.drop(REASONS.get(kind, "no counterpart for this plugin"), *place)

    def _read_gates(self, source: Source) -> None:
        for row in source.rows("featureGates"):
            if source.peek("featureGates", row) in ("flowControl", "prefixCache", "dataLayer", "prepareDataPlugins"):
                source.change("always on: queues by tier, fair between tenants", "featureGates", row)
        wait = source.peek("flowControl", "defaultRequestTTL")
        if isinstance(wait, str) and wait.endswith("s") and wait[:-1].replace(".", "").isdigit():
            source.change("as `max_queue_s` of each tier", "flowControl", "defaultRequestTTL")
            self._tier_fields["max_queue_s"] = number(wait[:-1], "defaultRequestTTL")
        source.drop("queues are bounded by time and objective, not by size", "flowControl")
        source.drop("admission computes whether an objective can be met", "saturationDetector")
        source.drop("pods are probed and scraped", "dataLayer")


READ_FROM_ENGINES = "block sizes, capacities and addresses are read from the engines"
