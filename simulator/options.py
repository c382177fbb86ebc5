"""How one simulated pod is set up: vLLM's flags, as far as anyone outside can tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.profile import Profile
from simulator.transfer.wiring import Wiring

TASKS = frozenset({"generate", "pooling"})
"""What a pod can serve; a real one serves one of them, and the other's paths are not there."""


@dataclass(frozen=True, slots=True)
class Options:
    """One pod. `engines` are data-parallel ranks; `adapters` map a LoRA adapter's name to its path."""

    profile: Profile = field(default_factory=Profile)
    models: tuple[str, ...] = ("simulated",)
    adapters: Mapping[str, str] = field(default_factory=dict)
    engines: int = 1
    enable_expert_parallel: bool = False
    """Its ranks step together."""
    tasks: frozenset[str] = frozenset({"generate"})
    max_model_len: int = 131_072
    api_key: str | None = None
    reports_cached_tokens: bool = True
    """`--enable-prompt-tokens-details`."""
    reports_request_id: bool = False
    """`--enable-request-id-headers`."""
    keeps_responses: bool = False
    """`VLLM_ENABLE_RESPONSES_API_STORE=1`."""
    sees_images: bool = False
    max_num_queued_reqs: int | None = None
    min_answer_tokens: int = 16
    max_answer_tokens: int = 256
    """Tokens of a response without limit; each prompt has a length of its own between these."""
    accents: bool = False
    """Answers have characters of several bytes here and there."""
    max_reasoning_tokens: int = 0
    """Tokens of what chat answers think before they say something, each prompt's its own number between half and all of
    them; 0: they do not think.
    As with `--reasoning-parser` and a template that opens the thoughts."""
    calls_tools: bool = False
    """Mostly call tools that they are offered (`--enable-auto-tool-choice`), instead of never."""
    tokens_per_event: int = 1
    """Of a stream that has fallen behind; vLLM lets it catch up in one event, but events that can be counted are
    better to test with."""
    load_s: float = 0.0
    """Real seconds from the start until /health says 200."""
    keep_alive_s: float = 5.0
    wiring: Wiring | None = None
    """`--kv-transfer-config`: how it shares KV with other pods."""

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models: name at least one")
        if self.engines < 1:
            raise ValueError("engines: must be >= 1")
        if not self.tasks or not self.tasks <= TASKS:
            raise ValueError(f"tasks: some of {', '.join(sorted(TASKS))}")
        if self.tokens_per_event < 1:
            raise ValueError("tokens_per_event: must be >= 1")
        if self.max_reasoning_tokens < 0:
            raise ValueError("max_reasoning_tokens: must be >= 0")
        if not 1 <= self.min_answer_tokens <= self.max_answer_tokens:
            raise ValueError("min_answer_tokens: must be from 1 to max_answer_tokens")

    @property
    def window_tokens(self) -> int:
        """The longest a prompt and its answer may get together: no engine takes what its cache could never hold."""
        return min(self.max_model_len, self.profile.kv_blocks * self.profile.block_size)
