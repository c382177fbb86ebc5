"""A model's prompts as tokens, by its own tokenizer: what an engine would make of the same body.

A long conversation is tokenised once: what stands between special tokens (a message, mostly) is cut apart by the
tokenizer in any case, so each such piece is remembered by its digest. Whether that gives the same tokens is tried when
a tokenizer is loaded; where it does not, texts are tokenised whole. Calls may come from several threads.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from gateway.kv_index.chat_templates import CannotRenderError, ChatTemplate
from gateway.kv_index.message_normalization import normal_messages
from gateway.kv_index.prompts import Chat, Ids, Spoken, Text, UnseenError
from routing.precise.token_chains import TokenPrompt, pack_tokens, root_of, text_digest

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

ENTRY_BYTES = 150
"""What an entry of the cache costs beside its tokens, about."""

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

TRIAL = (
    "Hello, world!",
    "  two  spaces\n\n\tand tabs ",
    "naïve café — 你好, мир 🙂",
    "def f(x):\n    return {'a': [1, 2.5e-3]}\n",
    "\n",
    " leading",
    "trailing\n",
    "",
)
"""Texts between special tokens on which cutting apart is tried."""


class BadTokenizerError(Exception):
    """The folder holds nothing that a tokenizer can be made of."""


class Pieces:
    """Tokens of texts that were seen before, least recently used ones forgotten beyond a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory."""
        return self._bytes

    def get(self, digest: bytes) -> bytes | None:
        with self._lock:
            packed = self._held.get(digest)
            if packed is not None:
                self._held.move_to_end(digest)
            return packed

    def put(self, digest: bytes, packed: bytes) -> None:
        with self._lock:
            if digest in self._held:
                return
            self._held[digest] = packed
            self._bytes += len(packed) + ENTRY_BYTES
            while self._bytes > self._most and self._held:
                _, gone = self._held.popitem(last=False)
                self._bytes -= len(gone) + ENTRY_BYTES


class LocalTokenizer:
    """One model's. `TokenPrompt`s carry the salt of their request, and the adapter's name."""

    def __init__(self, folder: Path, template: Path | None, *, cache_bytes: int, now: Callable[[], datetime]) -> None:
        """Load a tokenizer's folder. Raises `BadTokenizerError`, and `ModuleNotFoundError` without the extra."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

        self.pieces = Pieces(cache_bytes)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            settings = _read_json(folder / "tokenizer_config.json")
            sources = _templates(folder, settings, template)
            special = _special_tokens(folder, settings)
            self._templates = {name: ChatTemplate(source, special, now) for name, source in sources.items()}
        except ModuleNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise BadTokenizerError(f"{folder}: {error}") from None
        self._specials, self._cut = _cutter(self._tokenizer)
        self._before, self._after = self._wrapping()
        self.cuts_apart = self._is_same_apart()
        """Whether texts are tokenised piece by piece."""

    def prompt(self, spoken: Spoken, adapter: str = "") -> TokenPrompt:
        """The tokens of a prompt. Raises `UnseenError`."""
        root = root_of(adapter, spoken.salt)
        match spoken:
            case Ids(ids):
                try:
                    return TokenPrompt(pack_tokens(ids), root)
                except (OverflowError, TypeError):
                    raise UnseenError("body") from None
            case Text(text, special_tokens):
                return TokenPrompt(self._packed(text, wrapped=special_tokens), root)
            case Chat():
                return TokenPrompt(self._packed(self._rendered(spoken), wrapped=spoken.special_tokens), root)

    def _rendered(self, chat: Chat) -> str:
        template = (self._templates.get("tool_use") if chat.tools else None) or self._templates.get("default")
        if template is None:
            raise UnseenError("no_template")
        messages = normal_messages(
            chat.messages, wants_parts=template.wants_parts, knows_developers=template.knows_developers
        )
        try:
            return template.render(messages, chat.tools, chat.settings, continue_final=chat.continue_final)
        except CannotRenderError:
            raise UnseenError("template") from None

    # -- text to tokens --------------------------------------------------------------------------------------------

    def _packed(self, text: str, *, wrapped: bool) -> bytes:
        try:
            if not self.cuts_apart:
                return self._whole(text, wrapped=wrapped)
            packed = self._apart(text)
        except UnicodeEncodeError:
            raise UnseenError("body") from None
        return self._before + packed + self._after if wrapped else packed

    def _whole(self, text: str, *, wrapped: bool) -> bytes:
        return pack_tokens(self._tokenizer.encode(text, add_special_tokens=wrapped).ids)

    def _apart(self, text: str) -> bytes:
        pieces = self._cut.split(text) if self._cut else [text]
        # Every other piece is a special token itself.
        return b"".join(
            [self._specials[piece] if place & 1 else self._piece(piece) for place, piece in enumerate(pieces) if piece]
        )

    def _piece(self, text: str) -> bytes:
        digest = text_digest(text)
        packed = self.pieces.get(digest)
        if packed is None:
            packed = self._whole(text, wrapped=False)
            self.pieces.put(digest, packed)
        return packed

    # -- tried when loaded ---------------------------------------------------------------------------------------------

    def _wrapping(self) -> tuple[bytes, bytes]:
        """What the tokenizer puts before and behind a text on its own."""
        plain, wrapped = self._whole("a b", wrapped=False), self._whole("a b", wrapped=True)
        at = wrapped.find(plain)
        return (wrapped[:at], wrapped[at + len(plain) :]) if at >= 0 else (b"", b"")

    def _is_same_apart(self) -> bool:
        texts = list(TRIAL)
        for special in list(self._specials)[:64]:
            texts += [special.join(TRIAL), f" {special} {special}\n{special}x", f"{special}{special}"]
        return all(
            self._apart(text) == self._whole(text, wrapped=False)
            and self._before + self._apart(text) + self._after == self._whole(text, wrapped=True)
            for text in texts
            if text
        )


def _cutter(tokenizer: Tokenizer) -> tuple[dict[str, bytes], re.Pattern[str] | None]:
    """The special tokens at which the tokenizer itself cuts every text, and the pattern that finds them."""
    added: Mapping[int, AddedToken] = tokenizer.get_added_tokens_decoder()
    specials = {
        token.content: pack_tokens([number])
        for number, token in added.items()
        if token.content and not (token.normalized or token.single_word or token.lstrip or token.rstrip)
    }
    if not specials:
        return {}, None
    longest_first = sorted(specials, key=len, reverse=True)
    return specials, re.compile(f"({'|'.join(map(re.escape, longest_first))})")


def _templates(folder: Path, settings: Mapping[str, Any], template: Path | None) -> dict[str, str]:
    """Name to source; `default` serves where no other is meant."""
    if template is not None:
        return {"default": template.read_text(encoding="utf-8")}
    found = settings.get("chat_template")
    sources = {"default": found} if isinstance(found, str) else {one["name"]: one["template"] for one in found or ()}
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        sources["default"] = beside.read_text(encoding="utf-8")
    for more in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[more.stem] = more.read_text(encoding="utf-8")
    return sources


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """By the names under which templates ask for them."""
    said = _read_json(folder / "special_tokens_map.json") | dict(settings)
    found: dict[str, Any] = {}
    for name in SPECIAL_NAMES:
        token = said.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
