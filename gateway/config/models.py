"""Words of the configuration about models: what their pods cannot tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.cascades import LadderEntry, RungEntry, ladder_entry, rung_entry
from gateway.config.exact import TokenizerEntry, tokenizer_entry
from gateway.config.fields import NOT_SUPPORTED, goes_by_priority, pod_url
from tenancy.document import Fault, Table, not_negative, positive, text

LATER_OF_MODEL = (*("aliases", "litellm_params"),)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One entry of `model_list`. Prices are in the operator's currency per token."""

    name: str
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    """Of input that an engine held already; None: as all input."""
    pods: tuple[str, ...] | None = None
    """The pods that may serve it, None for all that say they do."""
    tokenizer: TokenizerEntry | None = None
    """How its prompts become tokens, None where the pods' own `/tokenize` does."""
    takes_priority: bool = False
    """Its pods schedule by priority."""
    kv_connector: str | None = None
    """How its pods hand KV over, where they do not tell it themselves."""
    kv_bytes_per_token: float | None = None
    """What a token leaves in a KV cache, over all ranks together."""
    rung: RungEntry = field(default_factory=RungEntry)
    """Its abilities and price as part of a cascade."""
    ladder: LadderEntry | None = None
    """The models behind it; None where it is not a cascade."""
    inference_pool: str | None = None
    """The InferencePool whose pods may serve it, None for all that say they do."""

    def input_cost(self, tokens: int | None, cached_tokens: int | None) -> float | None:
        """Of a prompt, None where price or tokens are unknown."""
        price, cached_price = self.input_cost_per_token, self.cache_read_input_token_cost
        if tokens is None or price is None:
            return None
        cached = cached_tokens or 0
        return (tokens - cached) * price + cached * (price if cached_price is None else cached_price)

    def output_cost(self, tokens: int | None) -> float | None:
        """Of an answer, None where price or tokens are unknown."""
        return None if tokens is None or self.output_cost_per_token is None else tokens * self.output_cost_per_token


def models(root: Table) -> tuple[ModelEntry, ...]:
    """The list `model_list`."""
    entries: dict[str, ModelEntry] = {}
    for table in root.tables("model_list"):
        for word in LATER_OF_MODEL:
            table.refuse(word, NOT_SUPPORTED)
        pods = table.each("pods", pod_url)
        if pods == () and "pods" in table:
            table.fault("pods", "must name a pod; leave it out to use all pods that serve the model")
        entry = ModelEntry(
            name=table.need("model_name", text, ""),
            input_cost_per_token=table.get("input_cost_per_token", not_negative, None),
            output_cost_per_token=table.get("output_cost_per_token", not_negative, None),
            cache_read_input_token_cost=table.get("cache_read_input_token_cost", not_negative, None),
            pods=pods,
            tokenizer=tokenizer_entry(table),
            takes_priority=table.get("scheduling_policy", goes_by_priority, default=False),
            kv_connector=table.get("kv_connector", text, None),
            kv_bytes_per_token=table.get("kv_bytes_per_token", positive(not_negative), None),
            inference_pool=table.get("inference_pool", text, None),
            rung=rung_entry(table),
            ladder=ladder_entry(table),
        )
        table.close()
        if entry.name and entry.name in entries:
            table.fault("model_name", f"`{entry.name}` stands twice")
        entries[entry.name] = entry
    root.faults.extend(_ladder_faults(entries))
    return tuple(entries.values())


def _ladder_faults(entries: Mapping[str, ModelEntry]) -> list[Fault]:
    """What ladders and the models that they name say against each other."""
    faults = []
    for at, entry in enumerate(entries.values()):
        ladder = entry.ladder
        if ladder is None:
            continue
        place = f"model_list[{at}]"
        if entry.pods is not None or entry.inference_pool is not None:
            faults.append(Fault(place, f"`{entry.name}` is a ladder: pods serve its rungs, not itself"))
        for number, rung in enumerate(ladder.rungs):
            if (named := entries.get(rung)) is not None and named.ladder is not None:
                faults.append(Fault(f"{place}.ladder[{number}]", f"`{rung}` is itself a ladder"))
        if ladder.file is not None and ladder.file.models != ladder.rungs:
            words = f"was made for the ladder {', '.join(ladder.file.models)}"
            faults.append(Fault(f"{place}.calibration", words))
    return faults
