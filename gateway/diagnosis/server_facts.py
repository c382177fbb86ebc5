"""Facts of a server for diagnosis: flags, build, environment and hardware, from what agents and discovery report."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from diagnosis.facts import BuildFacts, EngineFlags, EnvironmentFacts, HardwareFacts, NicPort
from gateway.discovery.source import ServerReport
from routing.canary.change import StartedServer
from routing.facts import PodFacts
from routing.server_settings import HASH_SEED_VARIABLE, NO_SEED, ServerSettings

UNSET = "unset"
"""Digest of a variable that is not set, as diagnosis has it."""

COUNT_FLAGS: Mapping[str, str] = {
    "max-num-batched-tokens": "max_num_batched_tokens",
    "max-num-seqs": "max_num_seqs",
    "long-prefill-token-threshold": "long_prefill_token_threshold",
    "max-model-len": "max_model_len",
    "speculative-config.num_speculative_tokens": "speculative_tokens",
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "decode-context-parallel-size": "dcp",
    "prefill-context-parallel-size": "pcp",
    "api-server-count": "api_servers",
    "block-size": "block_size",
    "max-num-queued-reqs": "max_num_queued_reqs",
}
"""Options of `vllm serve` with a count, and the fields of `EngineFlags`."""

TEXT_FLAGS: Mapping[str, str] = {
    "speculative-config.method": "speculative_method",
    "attention-backend": "attention_backend",
    "kv-cache-dtype": "kv_dtype",
    "prefix-caching-hash-algo": "hash_algorithm",
    "kv-transfer-config.kv_connector": "connector",
    "kv-transfer-config.kv_role": "kv_role",
    "kv-transfer-config.kv_load_failure_policy": "kv_load_failure_policy",
    "scheduling-policy": "scheduling_policy",
}

SWITCH_FLAGS: Mapping[str, str] = {
    "enable-chunked-prefill": "chunked_prefill",
    "enable-expert-parallel": "expert_parallel",
    "enable-eplb": "eplb",
    "enable-prefix-caching": "prefix_caching",
    "enable-prompt-tokens-details": "prompt_tokens_details",
    "kv-events-config.enable_kv_cache_events": "kv_events",
    "enforce-eager": "enforce_eager",
}

DEFAULTS: Mapping[str, object] = {
    "scheduling_policy": "fcfs",
    "speculative_method": "",
    "prompt_tokens_details": False,
    "kv_events": False,
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "expert_parallel": False,
    "eplb": False,
}
"""What an option that was read and not given means in vLLM."""

OPTION_DEFAULTS: Mapping[str, str] = {
    option: str(DEFAULTS[name]).lower()
    for option, name in {**COUNT_FLAGS, **TEXT_FLAGS, **SWITCH_FLAGS}.items()
    if name in DEFAULTS and DEFAULTS[name] != ""
}
"""The same by option, as a command line has it."""


def engine_flags(settings: ServerSettings, facts: PodFacts, read_at_s: float) -> EngineFlags | None:
    """Return the flags of a server; None where neither its options nor facts of discovery are known."""
    options = settings.options
    found: dict[str, object] = {}
    for option, name in COUNT_FLAGS.items():
        if option in options:
            found[name] = int(options[option])
    found |= {name: options[option] for option, name in TEXT_FLAGS.items() if option in options}
    found |= {name: options[option] == "true" for option, name in SWITCH_FLAGS.items() if option in options}
    if "kv-offloading-size" in options:
        found["offloading_gib"] = float(options["kv-offloading-size"])
    if _has_command_line(settings):
        found = {**DEFAULTS, **found}
    known = {
        "tp": facts.tp,
        "pp": facts.pp,
        "dp": facts.dp,
        "block_size": facts.block_size,
        "kv_dtype": facts.kv_dtype,
        "connector": facts.kv_connector,
        "kv_role": facts.kv_role,
        "kv_events": None if facts.kv_events is None else True,
    }
    found |= {
        name: value
        for name, value in known.items()
        if value is not None and found.get(name) in (None, False) and is_plain(value)
    }
    return EngineFlags(read_at_s, **found) if found else None  # type: ignore[arg-type]  # values as the tables have them


def started_server(settings: ServerSettings, facts: PodFacts) -> StartedServer:
    """Return how a server was started, by the options of `vllm serve`; those that were not given have their defaults
    where these are fixed. Without its command line what discovery reports is all that is known.
    """
    is_complete = _has_command_line(settings)
    options = {**(OPTION_DEFAULTS if is_complete else _known_options(facts)), **settings.options}
    build = {
        "version": facts.version,
        "image": facts.image_digest,
        "model": settings.model_digest,
        "model revision": settings.model_revision,
    }
    return StartedServer(options, is_complete, {name: value for name, value in build.items() if value is not None})


def _has_command_line(settings: ServerSettings) -> bool:
    """Return whether an option that is missing was not given: the command line was read, and it is all there is."""
    return settings.hash_seed is not None and settings.options.get("has-config-file") != "true"


def _known_options(facts: PodFacts) -> dict[str, str]:
    known = {
        "tensor-parallel-size": facts.tp,
        "pipeline-parallel-size": facts.pp,
        "data-parallel-size": facts.dp,
        "block-size": facts.block_size,
        "kv-cache-dtype": facts.kv_dtype,
    }
    return {name: str(value) for name, value in known.items() if value is not None and is_plain(value)}


def build_facts(settings: ServerSettings, facts: PodFacts, read_at_s: float) -> BuildFacts | None:
    """Return what runs in a pod; None where nothing is known."""
    found = BuildFacts(
        read_at_s,
        version=facts.version if facts.version is not None and _VERSION.fullmatch(facts.version) else None,
        image_digest=facts.image_digest,
        model_config_digest=settings.model_digest,
        template_digest=settings.template_digest,
        tokenizer_digest=settings.tokenizer_digest,
        revision=settings.model_revision,
        rollout=None if facts.revision is None else short_digest(facts.revision),
    )
    return None if found == BuildFacts(read_at_s) else found


def environment_facts(settings: ServerSettings, read_at_s: float) -> EnvironmentFacts | None:
    """Return the environment of a server; None where it could not be read."""
    seed = settings.hash_seed
    if seed is None and not settings.environment:
        return None
    digests = {} if seed is None else {HASH_SEED_VARIABLE: UNSET if seed == NO_SEED else seed}
    return EnvironmentFacts(read_at_s, dict(settings.environment), digests)


def hardware_facts(report: ServerReport | None, facts: PodFacts, read_at_s: float) -> HardwareFacts | None:
    """Return GPUs and network ports; None where nothing is known. Active ports share the node's bandwidth equally."""
    ports = () if report is None else report.node.rdma_ports
    up = sum(port.is_up for port in ports)
    rate = facts.nic_gbit_s / up if facts.nic_gbit_s and up else None
    gpus = len(report.node.gpus) if report is not None and report.node.gpus else facts.gpus
    found = HardwareFacts(
        read_at_s,
        host=facts.host or (None if report is None else report.agent),
        gpu=facts.gpu,
        gpus=gpus,
        ports=tuple(
            NicPort(f"{port.device}/{port.port}", "active" if port.is_up else "down", rate if port.is_up else None)
            for port in ports
        ),
    )
    return None if found == HardwareFacts(read_at_s) else found


def without_speculation(flags: EngineFlags | None, *, has_counters: bool, read_at_s: float) -> EngineFlags | None:
    """Complete flags by whether the engine has counters of speculation, which it has only where it speculates."""
    if has_counters:
        return flags
    if flags is None:
        return EngineFlags(read_at_s, speculative_method="")
    return replace(flags, speculative_method="") if flags.speculative_method is None else flags


def shown_model(name: str) -> str:
    """Return a model's name; of one that is a path or a URL a digest, because it may hold what must not be shown."""
    is_plain = not name.startswith(("/", ".", "~", "\\")) and name.count("/") <= 1 and not set(name) & set(":@?#")
    if is_plain:
        return name
    return f"model-{short_digest(name)}"


def is_plain(value: object) -> bool:
    """Return whether a fact is a number, a switch or a short word: none of these holds a key or a path."""
    return not isinstance(value, str) or _WORD.fullmatch(value) is not None


def short_digest(text: str) -> str:
    """Return a digest by which equal texts are found: of what is compared and not shown."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,63}")
