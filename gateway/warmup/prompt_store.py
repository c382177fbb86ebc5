"""The prompts that may be replayed to new pods: of each hot prefix one body, cut to the prefix.

In memory only, bounded in bytes and age, never logged and never sent to another gateway. What is cut off is not kept:
of a conversation only the part that other requests have shared. Tenants that share no KV are left out unless they have
agreed. With `prewarm: advise` no text is kept, only hashes and sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.runtime.guard import report_exception
from routing.blocks import Prompt
from routing.reading.rewriting import prefill_body
from routing.reading.shortening import shortened_body
from routing.request import Api, Request
from supply.hot_prefixes import MAX_PREFIXES, HotPrefix, HotPrefixes
from supply.warmup import ReplayTerms
from tenancy.tenants import Caller, Tenant

MAX_KEPT = 256
"""Plans are made on the event loop."""

MAX_BODY_SHARE = 0.25
"""Of the bytes that may be kept: a longer body is not cut, which would cost as much as to read it again."""

REFRESH = 0.5
"""Share of the age bound after which a kept prompt is replaced by a fresh one."""

RETRY_S = 10.0
"""After a prefix was cut, or could not be, before that is done for it again: it may have found no room."""

PERSONAL = ("user", "metadata", "safety_identifier", "session_id", "prompt_cache_key", "prediction", "suffix")
"""Fields of one request alone, which its shared prefix does not need."""

Shorten = Callable[[Api, bytes, int], tuple[bytes, int] | None]
"""Cuts a body to a prefix; see `shortened_body`."""


@dataclass(frozen=True, slots=True)
class KeptPrompt:
    """One prompt that may be replayed."""

    key: int
    """Last block of its prefix."""
    api: Api
    path: str
    """Of its endpoint."""
    model: str
    body: bytes
    """For a pod: of one output token, with its own cache salt; empty where no text is kept."""
    prompt: Prompt
    tenant: str | None
    terms: ReplayTerms
    kept_s: float


def may_keep(tenant: Tenant) -> bool:
    """Return whether a tenant's prompts may be kept: if it shares KV with everybody, or has agreed."""
    return tenant.prewarms if tenant.prewarms is not None else tenant.trust_domain is None


class PromptStore:
    """One per gateway process."""

    def __init__(
        self,
        *,
        max_bytes: float,
        max_age_s: float,
        keeps_text: bool,
        clock: Callable[[], float],
        shorten: Shorten = shortened_body,
    ) -> None:
        self.prefixes = HotPrefixes()
        self.bytes = 0
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._keeps_text = keeps_text
        self._clock = clock
        self._shorten = shorten
        self._kept: dict[int, KeptPrompt] = {}
        self._by_tenant: Counter[str | None] = Counter()
        self._tried_s: OrderedDict[int, float] = OrderedDict()
        """When prefixes were last cut, by last block."""

    def __len__(self) -> int:
        return len(self._kept)

    def observe(self, request: Request, body: bytes, path: str, caller: Caller) -> None:
        """Count a request that has arrived, and keep its hot prefix. `body`: as a pod is sent it. Raises nothing."""
        try:
            self._observe(request, body, path, caller.tenant)
        except Exception as error:  # noqa: BLE001 - the request itself must go on
            report_exception("warm-up", error)

    def _observe(self, request: Request, body: bytes, path: str, tenant: Tenant) -> None:
        if not request.may_pair or not may_keep(tenant):
            return
        now_s = self._clock()
        hot = self.prefixes.observe(request.prompt, now_s, tenant.name)
        if hot is None:
            return
        known = self._kept.get(hot.key)
        terms = ReplayTerms(tenant.regions, may_leave=bool(tenant.prewarms))
        if not self._should_replace(known, terms, now_s) if known is not None else self._was_tried(hot.key, now_s):
            return
        kept = self._cut(request, body, path, hot, tenant, terms, now_s)
        if kept is not None:
            self._remove(hot.key)
            self._kept[hot.key] = kept
            self.bytes += len(kept.body)
            self._by_tenant[kept.tenant] += max(1, len(kept.body))
            self._make_room(now_s)

    def kept(self) -> list[KeptPrompt]:
        """Return what is kept and not too old."""
        now_s = self._clock()
        for key in [key for key, each in self._kept.items() if now_s - each.kept_s >= self._max_age_s]:
            self._remove(key)
        return list(self._kept.values())

    def remove(self, key: int) -> None:
        """Forget a prompt: a pod has rejected it."""
        self._remove(key)

    def clear(self) -> None:
        """Forget all prompts, as when the policy of tenants has changed: it may forbid what was kept."""
        self._kept.clear()
        self._by_tenant.clear()
        self._tried_s.clear()
        self.bytes = 0

    def _was_tried(self, key: int, now_s: float) -> bool:
        """Return whether a prefix was cut a moment ago; if not it is now."""
        if now_s - self._tried_s.get(key, float("-inf")) < RETRY_S:
            return True
        self._tried_s[key] = now_s
        self._tried_s.move_to_end(key)
        if len(self._tried_s) > MAX_PREFIXES:
            self._tried_s.popitem(last=False)
        return False

    def _should_replace(self, known: KeptPrompt, terms: ReplayTerms, now_s: float) -> bool:
        """Return whether a prompt is old, or was kept of a tenant that may be computed in fewer places."""
        if now_s - known.kept_s >= REFRESH * self._max_age_s:
            return True
        before = known.terms
        is_wider = terms.regions is None and before.regions is not None
        return (is_wider and terms.may_leave >= before.may_leave) or (
            terms.may_leave and not before.may_leave and terms.regions == before.regions
        )

    def _cut(
        self,
        request: Request,
        body: bytes,
        path: str,
        hot: HotPrefix,
        tenant: Tenant,
        terms: ReplayTerms,
        now_s: float,
    ) -> KeptPrompt | None:
        prompt = request.prompt
        ends, end = prompt.ends, hot.blocks
        if self._keeps_text:
            if len(body) > MAX_BODY_SHARE * self._max_bytes:
                return None
            cut = self._shorten(request.api, body, ends[end - 1])
            if cut is None:
                return None
            body, shared = cut
            # What the cut has lost of the prefix it does not replay.
            end = min(end, bisect_right(ends, shared, 0, end))
            if not end:
                return None
            body = prefill_body(request.api, body, dropped=PERSONAL) if body else b""
        else:
            body = b""
        prefix = Prompt(prompt.blocks[:end], ends, ends[end - 1], prompt.seed)
        return KeptPrompt(hot.key, request.api, path, request.model, body, prefix, tenant.name, terms, now_s)

    def _make_room(self, now_s: float) -> None:
        """Forget until the rest fits: of the tenant that holds most, what was used least."""
        while self._kept and (self.bytes > self._max_bytes or len(self._kept) > MAX_KEPT):
            owner = max(self._by_tenant, key=lambda tenant: (self._by_tenant[tenant], str(tenant)))
            own = [each for each in self._kept.values() if each.tenant == owner]
            coldest = min(own, key=lambda each: self.prefixes.uses_of(each.key, now_s))
            self._remove(coldest.key)

    def _remove(self, key: int) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= len(kept.body)
            self._by_tenant[kept.tenant] -= max(1, len(kept.body))
            if self._by_tenant[kept.tenant] <= 0:
                del self._by_tenant[kept.tenant]
