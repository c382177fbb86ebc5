"""The section `model_list`: prices, pods and cascade of each model; values, reader and JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.cascades import (
    CascadeEntry,
    CascadeModelEntry,
    cascade_model_schema,
    cascade_schema,
    read_cascade,
    read_cascade_model,
)
from gateway.config.fields import NOT_SUPPORTED, TOKENIZER_REMOVED, parse_pod_base_url, parse_scheduling_policy
from tenancy.document import ConfigError, DocumentTable, not_negative, positive, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import AMOUNT, TEXT

UNSUPPORTED_KEYS = (*("aliases", "litellm_params"),)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `model_list`. Prices are in the operator's currency per token."""

    name: str
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    """Price of cached input tokens; None: that of all input."""
    pods: tuple[str, ...] | None = None
    """The pods that may serve it, None for all that list it."""
    takes_priority: bool = False
    """Its pods schedule by priority."""
    kv_connector: str | None = None
    """The KV connector of its pods, if they do not report it."""
    kv_bytes_per_token: float | None = None
    """Bytes of KV cache per token, over all ranks together."""
    cascade_model: CascadeModelEntry = field(default_factory=CascadeModelEntry)
    """Its abilities and price as part of a cascade."""
    cascade: CascadeEntry | None = None
    """The models behind it; None where it is not a cascade."""
    inference_pool: str | None = None
    """The InferencePool whose pods may serve it, None for all pods that list it."""

    @property
    def is_priced(self) -> bool:
        """Whether tokens of it have any price."""
        return self.input_cost_per_token is not None or self.output_cost_per_token is not None

    def input_cost(self, tokens: int | None, cached_tokens: int | None) -> float | None:
        """Return the cost of a prompt in the operator's currency, None if its price or tokens are unknown."""
        price, cached_price = self.input_cost_per_token, self.cache_read_input_token_cost
        if tokens is None or price is None:
            return None
        cached = cached_tokens or 0
        return (tokens - cached) * price + cached * (price if cached_price is None else cached_price)

    def output_cost(self, tokens: int | None) -> float | None:
        """Return the cost of an answer in the operator's currency, None if its price or tokens are unknown."""
        return None if tokens is None or self.output_cost_per_token is None else tokens * self.output_cost_per_token


def read_models(root: DocumentTable) -> tuple[ModelEntry, ...]:
    """Read the list `model_list`."""
    entries: dict[str, ModelEntry] = {}
    for section in root.tables("model_list"):
        for word in UNSUPPORTED_KEYS:
            section.reject_unknown(word, NOT_SUPPORTED)
        for word in ("tokenizer", "chat_template"):
            section.reject_unknown(word, TOKENIZER_REMOVED)
        pods = section.each("pods", parse_pod_base_url)
        if pods == () and "pods" in section:
            section.error("pods", "must name a pod; leave it out to use all pods that serve the model")
        entry = ModelEntry(
            name=section.get_required("model_name", text, ""),
            input_cost_per_token=section.get("input_cost_per_token", not_negative, None),
            output_cost_per_token=section.get("output_cost_per_token", not_negative, None),
            cache_read_input_token_cost=section.get("cache_read_input_token_cost", not_negative, None),
            pods=pods,
            takes_priority=section.get("scheduling_policy", parse_scheduling_policy, default=False),
            kv_connector=section.get("kv_connector", text, None),
            kv_bytes_per_token=section.get("kv_bytes_per_token", positive(not_negative), None),
            inference_pool=section.get("inference_pool", text, None),
            cascade_model=read_cascade_model(section),
            cascade=read_cascade(section),
        )
        section.close()
        if entry.name and entry.name in entries:
            section.error("model_name", f"duplicate entry `{entry.name}`")
        entries[entry.name] = entry
    root.errors.extend(_cascade_faults(entries))
    return tuple(entries.values())


def _cascade_faults(entries: Mapping[str, ModelEntry]) -> list[ConfigError]:
    """Return contradictions between cascades and the models that they name."""
    faults = []
    for at, entry in enumerate(entries.values()):
        cascade = entry.cascade
        if cascade is None:
            continue
        place = f"model_list[{at}]"
        if entry.pods is not None or entry.inference_pool is not None:
            faults.append(ConfigError(place, f"`{entry.name}` is a cascade: pods serve its models, not itself"))
        for number, model in enumerate(cascade.models):
            if (named := entries.get(model)) is not None and named.cascade is not None:
                faults.append(ConfigError(f"{place}.cascade.models[{number}]", f"`{model}` is itself a cascade"))
        if cascade.calibration is not None and cascade.calibration.models != cascade.models:
            words = f"was made for the cascade {', '.join(cascade.calibration.models)}"
            faults.append(ConfigError(f"{place}.cascade.calibration", words))
    return faults


def model_schema() -> Schema:
    return table(
        {
            "model_name": described(TEXT.schema, "As the pods call it."),
            "input_cost_per_token": described(AMOUNT.schema, "Money per input token."),
            "output_cost_per_token": described(AMOUNT.schema, "Money per output token."),
            "cache_read_input_token_cost": described(
                AMOUNT.schema, "Money per input token that an engine held already."
            ),
            "pods": described(
                {"type": "array", "items": TEXT.schema, "minItems": 1}, "The only pods that may serve it."
            ),
            "inference_pool": described(TEXT.schema, "The InferencePool whose pods may serve it."),
            "kv_connector": described(TEXT.schema, "How its pods hand KV over, in vLLM's names; pods' facts go first."),
            "kv_bytes_per_token": described(AMOUNT.schema, "KV of a token, over all ranks: what a hand-over moves."),
            **cascade_model_schema(),
            "cascade": described(cascade_schema(), "The models behind this name, if it is a cascade."),
            "scheduling_policy": described(
                {"enum": ["fcfs", "priority"]}, "What the pods were given as --scheduling-policy."
            ),
        },
        required=("model_name",),
    )
