"""Folders of key digests: `<tenant>/<key id>`, one file each; a key itself is never written.

Gateways read them, and operators change them by `hearth keys`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

from tenancy.document import InvalidValue
from tenancy.policy import KeyFile
from tenancy.reading.auth import read_key_file
from tenancy.reading.fields import KEY, name


class PolicyFileSystem:
    """Reads the files that a policy names from the file system; implements `PolicyFiles`."""

    def key_files(self, folder: str) -> Iterator[KeyFile]:
        """Yield the files `<tenant>/<key id>` of a folder, without names that begin with a dot (Kubernetes' own)."""
        if not Path(folder).is_dir():
            raise InvalidValue(f"folder `{folder}` does not exist")
        try:
            yield from self._listed(Path(folder))
        except OSError as error:
            raise InvalidValue(f"cannot read `{error.filename}`: {error.strerror}") from None

    def _listed(self, root: Path) -> Iterator[KeyFile]:
        for tenant in sorted(root.iterdir()):
            if tenant.name.startswith(".") or not tenant.is_dir():
                continue
            for path in sorted(tenant.iterdir()):
                if path.name.startswith(".") or not path.is_file():
                    continue
                yield KeyFile(tenant.name, path.name, self.text(str(path)))

    def text(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InvalidValue(f"cannot read `{path}`: {error.strerror}") from None


PREFIX = "sk-hearth-"
"""Prefix by which secret scanners recognise a key."""


RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyFileEntry:
    """One key of a folder. `fault` is what is wrong with its file, empty if it is valid."""

    tenant: str
    key_id: str
    user: str | None = None
    group: str | None = None
    until_s: float = inf
    fault: str = ""


class KeyFolder:
    """One folder. Only the owner can read the files and folders that it creates."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self) -> Iterator[KeyFileEntry]:
        """Yield all keys. Raises `InvalidValue` if the folder does not exist."""
        for file in PolicyFileSystem().key_files(str(self._root)):
            yield _entry(file)

    def find(self, tenant: str, key_id: str) -> KeyFileEntry:
        """Return one key. Raises `InvalidValue` if it does not exist."""
        path = self._place(tenant, key_id)
        if not path.is_file():
            raise InvalidValue(f"no key `{tenant}/{key_id}` in `{self._root}`")
        return _entry(KeyFile(tenant, key_id, PolicyFileSystem().text(str(path))))

    def add(self, tenant: str, key_id: str | None = None, **said: Any) -> tuple[str, str]:
        """Create a key. Returns its id and the key. `said`: user, group, until_s. Raises `InvalidValue`."""
        key_id = key_id or f"k{secrets.token_hex(4)}"
        path = self._place(tenant, key_id)
        key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        content = _content(sha256(key.encode()).hexdigest(), **said)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = _draft(path, content)
        try:
            os.link(draft, path)  # appears whole, and never over another key
        except FileExistsError:
            raise InvalidValue(f"key `{tenant}/{key_id}` already exists") from None
        finally:
            draft.unlink()
        return key_id, key

    def expire(self, tenant: str, key_id: str, until_s: float) -> float:
        """Bring the expiry of a key forward to `until_s`. Returns the new expiry. Raises `InvalidValue`."""
        entry = self.find(tenant, key_id)
        path = self._place(tenant, key_id)
        digest, _ = read_key_file(PolicyFileSystem().text(str(path)))
        ends_s = min(until_s, entry.until_s)
        _draft(path, _content(digest, user=entry.user, group=entry.group, until_s=ends_s)).replace(path)
        return ends_s

    def remove(self, tenant: str, key_id: str) -> None:
        """Delete a key. Raises `InvalidValue` if it does not exist."""
        self.find(tenant, key_id)
        self._place(tenant, key_id).unlink()

    def _place(self, tenant: str, key_id: str) -> Path:
        for given in (tenant, key_id):
            if name(given).startswith("."):
                raise InvalidValue(f"`{given}` must not begin with a dot")
        return self._root / tenant / key_id


def _entry(file: KeyFile) -> KeyFileEntry:
    try:
        _, said = read_key_file(file.content)
    except InvalidValue as wrong:
        return KeyFileEntry(file.tenant, file.key_id, fault=str(wrong))
    return KeyFileEntry(file.tenant, file.key_id, said.get("user"), said.get("group"), said.get("expires_at", inf))


def _content(digest: str, *, user: str | None = None, group: str | None = None, until_s: float = inf) -> str:
    words = [digest]
    for word, value in (("group", group), ("user", user)):
        if value is not None:
            if value.split() != [KEY[word].kind.parse(value)]:
                raise InvalidValue(f"{word} `{value}` must not contain spaces")
            words.append(f"{word}={value}")
    if until_s < inf:
        words.append(f"expires_at={datetime.fromtimestamp(int(until_s), UTC):%Y-%m-%dT%H:%M:%SZ}")
    return " ".join(words) + "\n"


def _draft(path: Path, content: str) -> Path:
    """Write the content to a hidden temporary file in the same folder."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
    return draft
