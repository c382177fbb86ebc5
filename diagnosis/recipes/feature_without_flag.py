"""The gateway is configured to use what a pod cannot do, for want of a flag."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from diagnosis.facts import CACHED_TOKENS, KV_EVENTS, PRIORITY, EngineFlags
from diagnosis.finding import Evidence, Question, Severity
from diagnosis.levels import never_generates
from diagnosis.recipe import Indication, Missing, Recipe
from diagnosis.scene import Scene


def _has_priority(flags: EngineFlags) -> bool | None:
    return None if flags.scheduling_policy is None else flags.scheduling_policy == "priority"


FLAGS: Mapping[str, tuple[str, Callable[[EngineFlags], bool | None]]] = {
    PRIORITY: ("--scheduling-policy priority", _has_priority),
    CACHED_TOKENS: ("--enable-prompt-tokens-details", lambda flags: flags.prompt_tokens_details),
    KV_EVENTS: ("--kv-events-config", lambda flags: flags.kv_events),
}
"""By feature: the flag that it needs, and whether a pod has it (None: unknown)."""


OF_PREFIXES = frozenset({CACHED_TOKENS, KV_EVENTS})
"""Features that pods without a prefix cache do not need, as those that make vectors."""


def look(scene: Scene) -> Iterator[Indication | Missing]:
    """Compare the features that are wanted of each pool with its pods' flags."""
    for pod in scene.facts.pods:
        lacking, unknown = [], []
        wanted = scene.facts.wanted_features.get(pod.pool, frozenset()) & FLAGS.keys()
        for feature in sorted(wanted - OF_PREFIXES if never_generates(pod) else wanted):
            flag, read = FLAGS[feature]
            has = None if pod.flags is None else read(pod.flags)
            if has is None:
                unknown.append(flag)
            elif not has:
                lacking.append(Evidence(feature, "off", flag, "flag", "", pod.address))
        if lacking:
            yield Indication(pod.pool, pod.address, tuple(lacking), 0.95)
        elif unknown:
            yield Missing(pod.pool, pod.address, f"{', '.join(unknown)} of the pod is not known")


RECIPE = Recipe(
    name="feature_without_flag",
    title="A configured feature lacks its flag",
    question=Question.ROUTING,
    severity=Severity.ADVICE,
    symptom="A feature of the gateway (priorities, real cached tokens, the precise index) has no effect on some pods.",
    looks_at=(
        "What the gateway is configured to use in a pool is compared with the flags of its pods. Of pods that have "
        "never generated a token, as those that make vectors, only priorities are."
    ),
    cause="The named pods were started without the flag that the feature needs.",
    first_step="Start the named pods with the flag that stands beside the feature.",
    helped="The finding disappears when the pod's flags are read again.",
    wrong_if="The feature works there: then its flag was read wrongly; report the command line's form.",
    look=look,
)
