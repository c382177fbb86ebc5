"""A small engine that keeps KV blocks as vLLM does and reports them as events: the oracle of the precise prefix index.

Blocks are physical; one content may be in several of them; unused blocks are evicted least recently used first, the
tail of a chain before its head. Its hashes depend on a secret of its own, so they differ from those of other engines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from routing.precise.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from routing.precise.token_chains import pack_tokens


@dataclass
class Running:
    """A request that uses blocks."""

    tokens: list[int]
    salt: str
    adapter: str
    names: list[int]
    blocks: list[int]
    """Physical ones, the last may be partly filled."""


@dataclass
class ModelEngine:
    """Plain attention, one group."""

    blocks: int
    block_tokens: int
    secret: int = 0
    events: list[KvEvent] = field(default_factory=list)
    free: OrderedDict[int, None] = field(init=False)
    name_of: dict[int, int] = field(default_factory=dict)
    """Physical block to the content it holds."""
    copies: dict[int, list[int]] = field(default_factory=dict)
    """Content to the physical blocks that hold it."""
    users: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = OrderedDict.fromkeys(range(self.blocks))

    # -- what a client could know --------------------------------------------------------------------------------------

    def hit_tokens(self, tokens: Sequence[int], salt: str = "", adapter: str = "") -> int:
        """What the engine would reuse of a prompt now."""
        hit = 0
        for name in self._names(tokens, salt, adapter)[: (len(tokens) - 1) // self.block_tokens]:
            if not self.copies.get(name):
                break
            hit += self.block_tokens
        return hit

    def begin(self, tokens: Sequence[int], salt: str = "", adapter: str = "", *, blind: bool = False) -> Running | None:
        """Prefill a prompt. None where there is no room. `blind`: it computes what others compute in the same step."""
        names = self._names(tokens, salt, adapter)
        hit = 0 if blind else self.hit_tokens(tokens, salt, adapter) // self.block_tokens
        found = [self.copies[name][0] for name in names[:hit]]
        wanted = -(-len(tokens) // self.block_tokens) - hit
        idle = sum(block in self.free for block in found)
        if wanted > len(self.free) - idle:
            return None
        for block in found:
            self._use(block)
        fresh = [self._evict() for _ in range(wanted)]
        request = Running(list(tokens), salt, adapter, names, found + fresh)
        self._keep(request, hit, len(names))
        return request

    def decode(self, request: Running, token: int) -> bool:
        """One token more. False where there is no room."""
        if len(request.tokens) == len(request.blocks) * self.block_tokens:
            if not self.free:
                return False
            request.blocks.append(self._evict())
        request.tokens.append(token)
        names = self._names(request.tokens, request.salt, request.adapter)
        if len(names) > len(request.names):
            request.names = names
            self._keep(request, len(names) - 1, len(names))
        return True

    def end(self, request: Running) -> None:
        """Its blocks are idle now, the tail to go first."""
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.free[block] = None
                if block not in self.name_of:
                    self.free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Empty the cache, which only works while nothing runs."""
        if self.users:
            return False
        self.name_of.clear()
        self.copies.clear()
        self.events.append(AllBlocksCleared())
        return True

    def reported(self) -> list[KvEvent]:
        """What it has said since it was last asked."""
        events, self.events = self.events, []
        return events

    # -- inside --------------------------------------------------------------------------------------------------------

    def _names(self, tokens: Sequence[int], salt: str, adapter: str) -> list[int]:
        names, parent = [], self.secret
        for start in range(0, len(tokens) - self.block_tokens + 1, self.block_tokens):
            extra = f"{adapter}/{salt if not start else ''}".encode()
            stated = pack_tokens(tokens[start : start + self.block_tokens]) + extra
            parent = xxh3_64_intdigest(stated, parent)
            names.append(parent)
        return names

    def _keep(self, request: Running, first: int, last: int) -> None:
        if first == last:
            return
        names = request.names[first:last]
        for block, name in zip(request.blocks[first:last], names, strict=True):
            self.name_of[block] = name
            self.copies.setdefault(name, []).append(block)
        adapter = [request.adapter] if request.adapter else []
        keys = [adapter + ([request.salt] if request.salt and not place else []) for place in range(first, last)]
        self.events.append(
            BlockStored(
                block_hashes=list(names),
                parent_block_hash=request.names[first - 1] if first else None,
                token_ids=request.tokens[first * self.block_tokens : last * self.block_tokens],
                block_size=self.block_tokens,
                medium="GPU",
                lora_name=request.adapter or None,
                extra_keys=[list(key) or None for key in keys],
                group_idx=0,
                kv_cache_spec_kind="full_attention",
            )
        )

    def _use(self, block: int) -> None:
        self.free.pop(block, None)
        self.users[block] = self.users.get(block, 0) + 1

    def _evict(self) -> int:
        block, _ = self.free.popitem(last=False)
        name = self.name_of.pop(block, None)
        if name is not None:
            self.copies[name].remove(block)
            if not self.copies[name]:
                del self.copies[name]
            self.events.append(BlockRemoved([name], medium="GPU", group_idx=0))
        self.users[block] = 1
        return block
